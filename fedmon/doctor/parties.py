"""Checks of a researcher and of a node, in the order in which one needs the other."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedmon.common.clock import utc_now
from fedmon.common.errors import FedmonError, SettingsError
from fedmon.common.settings import ResearcherSettings, broker_from_url, sources
from fedmon.common.wire import topics
from fedmon.common.wire.messages import Pong
from fedmon.doctor.broker import (
    RIGHTS_ADVICE,
    Check,
    CheckStatus,
    failed,
    is_mosquitto,
    ok,
    products,
    reach,
    skipped,
    talk,
    warning,
)
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.control import ControlClient, DaemonNotRunningError
from fedmon.researcher.asking.outcome import Outcomes, OutcomeStatus
from fedmon.researcher.federation import Federation

CLOCK_TOLERANCE_S = 5.0


def check_researcher(
    settings_file: Path | None, broker_url: str | None, environ: Mapping[str, str], *, timeout_s: float
) -> Iterator[Check]:
    """Make every check of a researcher, in the order in which one needs the other."""
    try:
        settings = sources.load_researcher(settings_file, environ)
        broker = settings.broker if broker_url is None else broker_from_url(broker_url)
        broker.password()
    except FedmonError as error:
        yield failed("settings", str(error), "mend the file or variable that is named")
        return
    yield ok("settings", f"researcher {settings.id}, broker {broker.url}, folder {settings.folder}")
    network = list(reach(broker))
    yield from network
    if not any(check.name == "network" and check.verdict is CheckStatus.OK for check in network):
        yield from products(broker)
        return
    instance = f"doctor-{secrets.token_hex(4)}"
    topic = topics.reply(settings.id, instance, settings.id)
    talked = list(talk(broker, client_id=settings.id, topic=topic, timeout_s=timeout_s))
    yield from talked
    is_refused = any(check.name == "credentials" and check.verdict is CheckStatus.FAILED for check in talked)
    if is_refused or not is_mosquitto(broker, client_id=settings.id, timeout_s=timeout_s):
        yield from products(broker)
    if is_refused:
        return
    try:
        with Federation(broker_url, settings=settings, instance=instance, timeout_s=timeout_s) as federation:
            yield from _nodes(federation)
    except FedmonError as error:
        yield failed("nodes", str(error), RIGHTS_ADVICE)
    yield _repository(settings, timeout_s)


def _nodes(federation: Federation) -> Iterator[Check]:
    known = federation.nodes()
    if not known:
        yield warning(
            "nodes",
            "no node is known",
            "start one (`fedmon node start`); if one runs, ask the operator whether you may read general/status/+",
        )
        return
    if known.beyond:
        yield warning(
            "max_nodes",
            f"{known.beyond} nodes are not kept track of, beyond max_nodes = {federation.settings.max_nodes}",
            "raise max_nodes in [researcher]",
        )
    outcomes = federation.ping()
    answered = sum(outcome.ok for outcome in outcomes.values())
    found = f"{answered} of {len(known)} known nodes answer"
    refused = [outcome for outcome in outcomes.values() if outcome.status is OutcomeStatus.REFUSED]
    if refused:
        yield warning(
            "nodes",
            f"{found}; {len(refused)} refuse researcher {federation.researcher_id}",
            f"ask their owners to run: fedmon node policy allow {federation.researcher_id}",
        )
    elif not answered:
        reasons = "; ".join(f"{node_id}: {outcome.reason}" for node_id, outcome in outcomes.items())
        yield failed("nodes", f"{found} ({reasons})", "see each reason")
    else:
        yield ok("nodes", found)
    yield _clocks(outcomes)


def _clocks(outcomes: Outcomes[Pong]) -> Check:
    """Compare clocks; a pong was written at most its round trip before now."""
    pongs = outcomes.ok
    if not pongs:
        return skipped("clock offset", "no node answered")
    now = utc_now()
    offsets = {node_id: (pong.time - now).total_seconds() for node_id, pong in pongs.items()}
    worst = max(offsets, key=lambda node_id: abs(offsets[node_id]))
    found = f"{offsets[worst]:+.1f} s at most ({worst})"
    if abs(offsets[worst]) > CLOCK_TOLERANCE_S:
        return warning("clock offset", found, "set the clocks by NTP; times of nodes are shown by their own clocks")
    return ok("clock offset", found)


def _repository(settings: ResearcherSettings, timeout_s: float) -> Check:
    url = settings.repository.url
    if url is None:
        return skipped("repository", "none is configured; plans over 100 KB cannot be sent")
    import requests

    try:
        settings.repository.token()
        answer = requests.get(url, timeout=timeout_s, allow_redirects=False)
    except SettingsError as error:
        return failed("repository", str(error), "mend the token file")
    except requests.RequestException as error:
        cause = type(error).__name__
        return failed("repository", f"{url} cannot be reached: {cause}", "start it, or mend [repository] url")
    if answer.status_code >= 500:
        return failed("repository", f"{url} answers {answer.status_code}", "look into the log of the repository")
    return ok("repository", f"{url} answers")


def check_node(path: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Make every check of a node."""
    try:
        folder = NodeFolder.open(path)
        settings = sources.load_node(folder.path, environ)
        settings.broker.password()
    except FedmonError as error:
        yield failed("settings", str(error), "mend the file or variable that is named")
        return
    yield ok("settings", f"node {settings.id}, broker {settings.broker.url}, folder {folder.path}")
    yield from reach(settings.broker)
    yield from products(settings.broker)
    if not settings.policy.researchers:
        yield warning("policy", "the node obeys nobody", "allow one with: fedmon node policy allow RESEARCHER")
    else:
        yield ok("policy", f"obeys {', '.join(settings.policy.researchers)}")
    try:
        with ControlClient(folder.path) as client:
            live = client.call("status").get("live") or {}
    except DaemonNotRunningError:
        yield skipped("connection", "the node does not run, so nobody was let in: start it with `fedmon node start`")
        return
    except FedmonError as error:
        yield failed("connection", str(error), "look into the node's log")
        return
    if live.get("connected"):
        yield ok("connection", f"connected to {live.get('host')} since {live.get('since')}, boot {live.get('boot')}")
    else:
        yield failed(
            "connection",
            f"not connected: {live.get('last_error') or 'no reason known'}",
            "check user name, password file and certificates in node.toml; the node goes on trying",
        )
