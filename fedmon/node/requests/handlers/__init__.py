"""One handler for each command of the wire: it gets a valid request of an obeyed researcher, and returns the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedmon.common.errors import FedmonError
from fedmon.common.wire import messages, runs
from fedmon.common.wire.envelope import Reply, Request
from fedmon.node.requests.handlers import (
    ack,
    approval,
    by_url,
    datasets,
    job_status,
    monitor,
    ping,
    plan_status,
    run,
    stop,
)
from fedmon.node.services import Services

Handler = Callable[[Any, Services], Reply | None]

HANDLERS: dict[type[Request], Handler] = {
    messages.Ping: ping.answer,
    messages.ListDatasets: datasets.answer_list,
    messages.SearchDatasets: datasets.answer_search,
    messages.Approval: approval.answer,
    messages.TrainingPlanStatus: plan_status.answer,
    messages.Monitor: monitor.answer,
    messages.Ack: ack.take,
    runs.Run: run.answer,
    runs.Stop: stop.answer,
    runs.JobStatus: job_status.answer,
    by_url.ApprovalByUrl: by_url.ask_for,
    by_url.StatusByUrl: by_url.ask_for,
}

WITH_BYTES: dict[type[Request], Callable[[Any, bytes | FedmonError, Services], Reply]] = {
    messages.Approval: approval.fetched,
    by_url.ApprovalByUrl: by_url.take_in,
    by_url.StatusByUrl: by_url.tell_status,
}
"""What goes on with a request once the bytes that it waited for were fetched, or were not."""
