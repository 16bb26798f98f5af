"""One handler for each command of the wire: it gets a valid request of an obeyed researcher, and returns the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedmon.common.wire import messages
from fedmon.common.wire.messages import Reply, Request
from fedmon.node.handlers import ack, approval, datasets, monitor, ping, plan_status
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
}
