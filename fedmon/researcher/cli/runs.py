"""`fedmon run` and `fedmon runs`: approved plans on nodes, from a shell."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmon.common.errors import FedmonError, NoAnswerError, NotFoundError
from fedmon.common.ids import chosen
from fedmon.common.log import escape_control
from fedmon.common.options import ArgOption, JsonOption, LinesOption, NodesOption, TimeoutOption, each
from fedmon.plan.values import arguments_of
from fedmon.researcher.cli.run_values import save, shown, sketched
from fedmon.researcher.cli.shell import (
    INTERRUPTED,
    NO_ANSWER,
    REFUSED,
    dataset_ids,
    emit,
    exit_code,
    federated,
    outcomes_document,
)

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.runs.errors import RunFailedError
    from fedmon.researcher.runs.handle import JobLog, RunHandle
    from fedmon.researcher.runs.states import NodeRun, RunStates

_DIGEST = "sha256:"
FOLLOW_EVERY_S = 1.0

JobArgument = Annotated[
    str, typer.Argument(help="The name of a run, its id, or its beginning (at least 4 characters).")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder for the results, a file for each node: .json or .npz.")
]
WaitOption = Annotated[
    float | None, typer.Option("--wait", min=0.1, help="Seconds to wait for the end (default: no limit).")
]
LookOption = Annotated[
    float | None, typer.Option("--wait", min=0.1, help="Seconds to wait for the end (default: no wait).")
]


@federated()
def run(
    federation: Federation,
    *,
    plan: Annotated[
        str, typer.Argument(help="A Python file with an approved plan, or sha256: and (the beginning of) its digest.")
    ],
    tags: Annotated[
        list[str] | None, typer.Option(help="On a dataset with this tag; of several, also as a,b, all must fit.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="On the dataset with this id, its beginning, or name.")] = None,
    node: NodesOption = None,
    arg: ArgOption = None,
    inputs: Annotated[Path | None, typer.Option(help="Inputs: a .json file, or a .npz file of arrays.")] = None,
    group: Annotated[str, typer.Option(help="The training that this run is a round of.")] = "",
    name: Annotated[str, typer.Option(help="A name to find this run by, in place of its id.")] = "",
    output: OutputOption = None,
    wall_s: Annotated[float | None, typer.Option(min=0.001, help="Wall time, in seconds.")] = None,
    cpu_s: Annotated[float | None, typer.Option(min=0.001, help="CPU time, in seconds.")] = None,
    memory_bytes: Annotated[int | None, typer.Option(min=1, help="Memory, in bytes.")] = None,
    output_bytes: Annotated[int | None, typer.Option(min=1, help="Largest result on each node.")] = None,
    wait: WaitOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait for the end; `fedmon runs show JOB` shows how it goes on.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run an approved plan on nodes and show its results; Ctrl-C stops the waiting, not the run."""
    from fedmon.plan.parcels import read_inputs

    given = read_inputs(inputs) if inputs is not None else None
    words = arguments_of(arg or ())
    limits = {"wall_s": wall_s, "cpu_s": cpu_s, "memory_bytes": memory_bytes, "output_bytes": output_bytes}
    with federation:
        handle = federation.run(
            _plan(federation, plan, node),
            nodes=node,
            tags=each(tags, "--tags"),
            dataset=None if dataset is None else dataset_ids(federation, [dataset], node)[0],
            args=words,
            inputs=given,
            limits={name: value for name, value in limits.items() if value is not None},
            group=group,
            name=name,
        )
        if detach:
            how = "" if handle.is_over else _how_to_go_on(handle)
            emit(_document(handle, {}, {}), text=handle, more=how, as_json=json)
            raise typer.Exit(exit_code(handle.started) if handle.started is not None else 0)
        _finish(handle, wait=wait, output=output, as_json=json)


@federated()
def list_(
    federation: Federation,
    *,
    node: NodesOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many runs to list, newest first; --json has all.")] = 30,
    json: JsonOption = False,
) -> None:
    """List your runs of plans that nodes know."""
    from fedmon.researcher.runs.states import RunList

    with federation:
        outcomes = federation.jobs(nodes=node)
        emit(outcomes_document(federation, outcomes), text=RunList(outcomes, limit=limit), as_json=json)
        raise typer.Exit(exit_code(outcomes))


@federated()
def show(
    federation: Federation,
    *,
    job: JobArgument,
    node: NodesOption = None,
    output: OutputOption = None,
    wait: LookOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show a run and its results; --wait waits for its end."""
    with federation:
        handle = federation.job(job, nodes=node)
        if wait is not None:
            _finish(handle, wait=wait, output=output, as_json=json)
        # A run that is over is complete after a question or two more: for its results and reports.
        if handle.states().is_over:
            handle.wait(timeout)
        results, failed = handle.opened()
        emit(_document(handle, results, failed), text=handle, more=_results_text(results), as_json=json)
        _save(results, output, as_json=json)
        if failed and handle.is_over:
            raise typer.Exit(NO_ANSWER if handle.are_held(failed) else 1)


@federated()
def logs(
    federation: Federation,
    *,
    job: JobArgument,
    node: NodesOption = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="Show stderr instead of stdout.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run is over, or Ctrl-C.")] = False,
    json: LinesOption = False,
) -> None:
    """Show a plan's output in a run, if the owners allow it."""
    from fedmon.researcher.asking.tables import by_reason

    with federation:
        handle = federation.job(job, nodes=node)
        offsets = dict.fromkeys(node or handle.nodes, 0)
        failed: FedmonError | None = None
        last: JobLog | None = None
        while offsets:
            over = handle.is_over or not follow
            withheld: dict[str, str] = {}
            for node_id in list(offsets):
                try:
                    log = handle.logs(node_id, "stderr" if stderr else "stdout", offset=offsets[node_id])
                except FedmonError as error:
                    if over or not isinstance(error, NoAnswerError):
                        failed = failed or error
                        del offsets[node_id]
                    continue
                offsets[node_id] = log.next_offset
                if log.withheld:
                    withheld[node_id] = log.withheld
                    del offsets[node_id]
                if log.text or (log.withheld and json):
                    is_other = len(handle.nodes) > 1 and (last is None or last.node_id != node_id)
                    text = f"{_line_end(last)}== {node_id} ==\n{log}" if is_other else str(log)
                    emit(log, text=text, end="", as_json=json)
                    last = log
            if withheld and not json:
                told = "\n".join(escape_control(f"output is withheld by {line}") for line in by_reason(withheld))
                emit(withheld, text=f"{_line_end(last)}{told}", as_json=False)
                last = None
            if over:
                break
            handle.wait(FOLLOW_EVERY_S)
        sys.stdout.write("" if json else _line_end(last))
        if failed is not None:
            raise failed
        raise typer.Exit(0 if offsets else REFUSED)


@federated()
def stop(
    federation: Federation,
    *,
    job: JobArgument,
    node: NodesOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Stop a run of a plan on its nodes; jobs that `fedmon job` measures are not touched."""
    with federation:
        handle = federation.job(job, nodes=node)
        over = [one for one, part in handle.states().items() if part.is_over]
        # A node that was named and not reached may still run it.
        outcomes = handle.stop(nodes=[one for one in node or handle.nodes if one not in over])
        handle.expect(list(outcomes.ok))
        done = any(all(states[one].is_over for one in outcomes.ok) for states in handle.changes(timeout))
        told = "not stopped" if not outcomes.ok else "asked to end; not over yet" if not done else "ended"
        first = told if outcomes else "it was over already"
        refused = "".join(f"\n{escape_control(line)}" for line in outcomes.reasons())
        emit(
            outcomes_document(federation, outcomes),
            text=f"job {handle.job_id}: {first}{refused}\n{handle}",
            as_json=json,
        )
        code = exit_code(outcomes) if outcomes else 0
        raise typer.Exit(code or (0 if done else NO_ANSWER))


def _plan(federation: Federation, plan: str, nodes: list[str] | None) -> str:
    """Return a plan; of a digest all digits: those of the only one that begins so and ran for this researcher."""
    if not plan.startswith(_DIGEST) or len(plan) == len(_DIGEST) + 64:
        return plan
    ran = {job.sha256: job.sha256 for jobs in federation.jobs(nodes=nodes).runs().values() for job in jobs.values()}
    with contextlib.suppress(NotFoundError):  # the request refuses it
        plan = _DIGEST + chosen(plan.removeprefix(_DIGEST), ran, what="plan", see="fedmon runs --json")
    return plan


def _finish(handle: RunHandle, *, wait: float | None, output: Path | None, as_json: bool) -> None:
    """Wait, show, and end with the exit code of the run."""
    from fedmon.researcher.runs.errors import RunFailedError, RunNotOverError

    code, complaint = 0, ""
    failed: dict[str, str] = {}
    told: dict[str, str] = {}
    try:
        for states in handle.changes(wait):
            if not as_json:
                told = tell(states, told)
        if wait is not None and not handle.is_over:
            raise handle.not_over(waited_s=wait)
        results = handle.result()
    except RunFailedError as error:
        results, failed, code = error.results, error.failed, error.exit_code
        complaint = str(error) if as_json else _short(handle, error)
    except RunNotOverError as error:
        results, failed, code = error.results, error.unfinished, NO_ANSWER
        complaint = str(error) if as_json else f"not over within {error.waited_s:g} s; {_how_to_go_on(handle)}"
    except KeyboardInterrupt:
        results, code, complaint = {}, INTERRUPTED, f"stopped waiting; {_how_to_go_on(handle)}"
    if results or as_json:
        emit(_document(handle, results, failed), text=_results_text(results), as_json=as_json)
    if complaint:
        sys.stderr.write(escape_control(f"fedmon: {complaint}\n", keep="\n"))
    _save(results, output, as_json=as_json)
    raise typer.Exit(code)


def _short(handle: RunHandle, error: RunFailedError) -> str:
    """Return the complaint without the reasons that the states, which are on the screen, have told already."""
    from fedmon.researcher.asking.tables import by_reason

    states, what, later = handle.states(), "did not succeed", ""
    if handle.are_held(error.failed):
        what, later = "hold their result", f"; later `fedmon runs show {handle.job_id}` has it, or the owner's note"
    untold = {node: "" if states[node].sentence() == reason else reason for node, reason in error.failed.items()}
    said = "; ".join(line.removesuffix(": ") for line in by_reason(untold))
    return f"{len(untold)} of {len(states)} nodes {what}: {said}{later}"


def _how_to_go_on(handle: RunHandle) -> str:
    job = handle.job_id
    return f"job {job} goes on: `fedmon runs show {job}` shows it and its results, `fedmon runs stop {job}` ends it"


def _results_text(results: dict[str, dict[str, Any]]) -> str:
    return "\n".join(f"{node_id}: {escape_control(sketched(values))}" for node_id, values in results.items())


def _save(results: dict[str, dict[str, Any]], output: Path | None, *, as_json: bool) -> None:
    """Write results, which are shown even if that fails, into a folder if one is named."""
    for path in save(results, output) if output else ():
        if not as_json:
            typer.echo(f"written: {path}")


def _line_end(last: JobLog | None) -> str:
    """Return the newline that the last piece of output lacks."""
    return "" if last is None or last.text.endswith("\n") else "\n"


def _document(handle: RunHandle, results: dict[str, dict[str, Any]], failed: dict[str, str]) -> dict[str, Any]:
    """Return everything that is known of a run, for programs."""
    return {
        "job_id": handle.job_id,
        "sha256": handle.sha256,
        "over": handle.is_over,
        "nodes": [
            {
                "node_id": part.node_id,
                "state": part.state,
                "reason": part.explanation(),
                "unheard": part.unheard,
                "unheard_since": part.unheard_since,
                "job": part.job,
                "scalars": part.scalars,
            }
            for part in handle.states().values()
        ],
        "scalars": handle.scalars,
        "results": shown(results),
        "failed": failed,
    }


# --- progress ---------------------------------------------------------------------------------------------------------


def tell(states: RunStates, before: dict[str, str]) -> dict[str, str]:
    """Write the job, or the states that are not as ``before``, to stderr; nodes that change alike share a line."""
    from fedmon.researcher.asking.tables import by_reason

    now = {str(node_id): part.sentence() for node_id, part in states.items()}
    new = {str(node_id): _line(part) for node_id, part in states.items() if before.get(node_id) != now[node_id]}
    for line in [*([] if before else [f"job {states.job_id}"]), *by_reason(new)]:
        sys.stderr.write(f"{escape_control(line)}\n")
    return now


def _line(part: NodeRun) -> str:
    """Return the state of a part; of one that succeeded, also its duration and last report."""
    from fedmon.researcher.runs.states import shown_scalars

    usage = part.job.usage if part.job is not None else None
    if not part.succeeded or usage is None or usage.wall_s is None:
        return part.sentence()
    latest = f", {shown_scalars(part.latest)}" if part.latest else ""
    return f"{part.sentence()} after {usage.wall_s:.2f} s{latest}"
