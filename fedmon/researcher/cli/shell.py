"""Parts that the researcher's verbs share: a federation for one verb, output, and exit codes."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import FedmonError, NoAnswerError, NotFoundError
from fedmon.common.ids import chosen
from fedmon.common.log import escape_control
from fedmon.common.options import BrokerOption, IdOption, SettingsOption, TimeoutOption, each

if TYPE_CHECKING:
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.samples.consumers import SampleConsumer

REFUSED, NO_ANSWER, INTERRUPTED = 4, 6, 130
_DATASET = "dataset_"


def opened(
    broker: BrokerOption = None,
    settings: SettingsOption = None,
    researcher: IdOption = None,
    timeout: TimeoutOption = 5.0,
) -> Federation:
    """Return a federation for one verb: its own instance, beside an open notebook of the same researcher."""
    import secrets

    from fedmon.researcher.federation import Federation

    instance = f"shell-{secrets.token_hex(4)}"
    return Federation(broker, settings=settings, researcher_id=researcher, timeout_s=timeout, instance=instance)


def federated(*, asks: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `opened` to a verb, before its ``timeout`` and ``json``; it gets the federation, not started.

    A verb that ``asks`` has a ``--timeout`` for replies. Its ``node`` becomes a list of ids, or None for all.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        # The federation is imported when the verb runs: its help must not wait for that.
        unknown = {"Federation": object}
        _, *own = inspect.signature(verb, eval_str=True, locals=unknown).parameters.values()
        names = [parameter.name for parameter in own]
        added = [
            parameter
            for name, parameter in inspect.signature(opened, eval_str=True, locals=unknown).parameters.items()
            if name not in names and (asks or name != "timeout")
        ]
        at = names.index("timeout" if "timeout" in names else "json")
        merged = [*own[:at], *added, *own[at:]]

        def with_federation(**given: Any) -> None:
            chosen = {"timeout": None} | {parameter.name: given.pop(parameter.name) for parameter in added}
            if asks and "timeout" in names:
                chosen["timeout"] = given["timeout"]
            if "node" in names:
                given["node"] = each(given["node"])
            verb(opened(**chosen), **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        vars(with_federation)["__signature__"] = inspect.Signature([one.replace(kind=keyword) for one in merged])
        with_federation.__name__, with_federation.__doc__ = verb.__name__, verb.__doc__
        with_federation.__annotations__ = {}
        return with_federation

    return decorate


def emit(document: Any, *, text: object, more: str = "", end: str = "\n", as_json: bool) -> None:
    """Print a JSON document on one line, or text with ``more`` below, at once: on a terminal a table in colours."""
    if as_json:
        sys.stdout.write(f"{msgspec.json.encode(document, enc_hook=str).decode()}\n")
    elif hasattr(text, "__rich__") and sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(text)
    else:
        sys.stdout.write(f"{text}{end}")
    if more and not as_json:
        sys.stdout.write(f"{more}\n")
    sys.stdout.flush()


def outcomes_document(federation: Federation, outcomes: Outcomes[Any]) -> dict[str, Any]:
    """Return everything that is known about a request, for programs."""
    return {
        "command": outcomes.command,
        "broker": federation.settings.broker.url,
        "researcher_id": federation.researcher_id,
        "elapsed_s": round(outcomes.elapsed_s, 6),
        "outcomes": [
            {
                "node_id": node_id,
                "status": outcome.status,
                "reason": outcome.reason,
                "elapsed_s": outcome.elapsed_s,
                "reply": outcome.reply,
                **({} if outcome.retry_after_s is None else {"retry_after_s": outcome.retry_after_s}),
            }
            for node_id, outcome in outcomes.items()
        ],
        "explanation": outcomes.explanation(),
    }


def dataset_ids(federation: Federation, wanted: list[str], nodes: list[str] | None) -> list[str]:
    """Return names and tags of datasets as they are, and for another text the id of the only one that begins so."""
    if all(len(one) == len(_DATASET) + 36 for one in wanted):
        return wanted
    found = [each for reply in federation.datasets(nodes=nodes).ok.values() for each in reply.datasets]
    ids = {each.dataset_id: each.dataset_id for each in found}
    resolved = {one: one for each in found for one in (each.name, *each.tags)}
    for one in set(wanted) - resolved.keys():
        with contextlib.suppress(NotFoundError):  # nodes refuse it, or take it as several tags
            resolved[one] = chosen(one, ids, prefix=_DATASET, what="dataset", see="fedmon datasets")
    return [resolved.get(one, one) for one in wanted]


def exit_code(outcomes: Outcomes[Any]) -> int:
    """Return 0 if all expected nodes did it; a node known to be offline is expected only when named."""
    from fedmon.researcher.asking import outcome as asked

    expected = [one for one in outcomes.values() if outcomes.named or one.status is not asked.OutcomeStatus.OFFLINE]
    if not expected:
        return NO_ANSWER
    statuses = {one.status for one in expected if not one.ok}
    return asked.exit_code(statuses) if statuses else 0


def tell_absent(federation: Federation, nodes: list[str] | None) -> None:
    """Write to stderr which of the nodes named are not online, and why."""
    if nodes:
        federation.session.asker.wait_settled()
        for node_id, reason in federation.session.consumers.not_online(nodes).items():
            sys.stderr.write(f"{escape_control(f'fedmon: nothing from {node_id}: {reason}')}\n")


def no_sample(consumer: SampleConsumer, federation: Federation, *, pace_s: float | None = None) -> FedmonError:
    """Return the error that says why no sample came; ``pace_s`` is the interval of the slowest node."""
    said = [f"{node_id}: {reason}" for node_id, reason in consumer.refusals.items()]
    if pace_s is not None:
        said.append(f"nodes send one every {pace_s:g} s; wait longer, or add --interval 1")
    if consumer.follower.pending:
        said.append("those heard wait for earlier ones, which no node sends; a monitor of the broker may only watch")
    return NoAnswerError(f"no sample came: {'; '.join(said) or federation.nodes().explanation()}")
