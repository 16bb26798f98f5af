"""The owner's commands about runs: every job of every researcher, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fedmon.common.errors import ConflictError, FedmonError, NotFoundError
from fedmon.node.owner.desk import Desk
from fedmon.node.registers.plan_view import visible_text
from fedmon.node.runs.folder import JobFolder
from fedmon.node.runs.order import Logged
from fedmon.node.runs.register import JobRecord, JobRegister

MAX_LISTED = 1000
_SHOWN_BYTES = 16_384
_SHOWN_LINES = 20
_LEAST_LETTERS = 6


class ListRuns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs to list, newest first."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 100


class OneRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job by its id."""

    job_id: str
    by: str = ""


def list_runs(desk: Desk, args: ListRuns) -> dict[str, Any]:
    """List jobs of all researchers."""
    found = JobRegister(desk.database).of(None, offset=0, limit=args.limit)
    if desk.runs is not None:
        found = desk.runs.records(limit=args.limit)
    return {"runs": [shown(record) for record in found]}


def show_run(desk: Desk, args: OneRun) -> dict[str, Any]:
    """Show everything of a job: with the beginning of what it printed, the end of what it logged, and where it lies."""
    record = _record(desk, args.job_id)
    path = desk.folder.runs_dir / record.job.job_id
    return {
        "run": shown(record),
        "folder": str(path) if path.is_dir() else None,
        "output": _output(path),
        "logged": _logged(path),
    }


def stop_run(desk: Desk, args: OneRun) -> dict[str, Any]:
    """Have a job end; its researcher is told that its owner did it."""
    if desk.runs is None:
        raise ConflictError(
            "the node of this folder is stopped, and a job is stopped by a running one: start it with "
            "'fedmon node start'"
        )
    job_id = _record(desk, args.job_id).job.job_id
    desk.runs.stop_by_owner(job_id, by=args.by)
    return {"run": shown(_record(desk, job_id))}


def shown(record: JobRecord) -> dict[str, Any]:
    """Return what is known of a job as a document, texts with nothing hidden."""
    document: dict[str, Any] = msgspec.to_builtins(record.job)
    for key in ("name", "reason"):
        document[key] = visible_text(document[key])
    if document["problem"] is not None:
        document["problem"] = {
            key: value if value is None else visible_text(value) for key, value in document["problem"].items()
        }
    result = None if record.result is None else {"sha256": record.result.sha256, "bytes": record.result.size_bytes}
    return {"researcher_id": record.researcher_id, **document, "result": result}


def _record(desk: Desk, job_id: str) -> JobRecord:
    """Return a job by its id, or by the beginning of it where that is enough."""
    register = JobRegister(desk.database)
    if register.find(job_id) is None:
        ids = sorted(each for each in register.ids() if each.startswith(job_id) and len(job_id) >= _LEAST_LETTERS)
        if len(ids) > 1:
            raise ConflictError(f"{len(ids)} jobs begin with {job_id}: {', '.join(ids[:10])}")
        if not ids:
            raise _unknown(job_id)
        job_id = ids[0]
    found = register.find(job_id) if desk.runs is None else desk.runs.record(job_id)
    if found is None:
        raise _unknown(job_id)
    return found


def _unknown(job_id: str) -> NotFoundError:
    return NotFoundError(f"no job {visible_text(job_id[:80])!r} here; see: fedmon node runs")


def _output(path: Path) -> dict[str, str | None]:
    folder = JobFolder(path)
    output: dict[str, str | None] = {}
    for name, read in (("stdout", folder.stdout), ("stderr", folder.stderr)):
        try:
            output[name] = visible_text(read(0, _SHOWN_BYTES).text)
        except FedmonError:
            output[name] = None
    return output


def _logged(path: Path) -> list[str]:
    """Return the last lines that the plan logged."""
    try:
        events = JobFolder(path).last_events(_SHOWN_BYTES)
    except FedmonError:
        return []
    logged = [event for event in events if isinstance(event, Logged)]
    return [visible_text(f"{event.level} {event.message}") for event in logged[-_SHOWN_LINES:]]


RUN_COMMANDS: Mapping[str, tuple[type[Any], Any]] = {
    "run-list": (ListRuns, list_runs),
    "run-show": (OneRun, show_run),
    "run-stop": (OneRun, stop_run),
}
