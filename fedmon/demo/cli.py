"""`fedmon demo`: the guided first run."""

from __future__ import annotations

import contextlib
import json as json_text
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import typer

from fedmon.broker.engine import BrokerEngine, choose_engine
from fedmon.broker.errors import BrokerStartError, PortInUseError
from fedmon.common.errors import FedmonError
from fedmon.common.settings import BrokerSettings, Host, ResearcherSettings
from fedmon.demo.hospitals import Hospitals
from fedmon.demo.screen import DemoScreen
from fedmon.demo.story import NODES, Story
from fedmon.researcher.federation import Federation

RESEARCHER = "demo-researcher"
USUAL_PORT = 1883
"""Of the address that researchers have without any setting."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command("demo", epilog="Exit codes: 0 every step worked, 1 a step failed, 2 wrong use.")
def demo(
    keep: bool = typer.Option(
        False, "--keep", help="Leave broker and nodes running, on port 1883 where it is free, and say how to connect."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON document instead of the story."),
) -> None:
    """Start a broker and three hospitals on this machine, and walk through what a researcher does with them."""
    screen = DemoScreen(quiet=json)
    document: dict[str, Any] = {"ok": False, "timings_s": {}}
    started = time.monotonic()
    # A terminated demo must end its nodes and its broker, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="fedmon-demo-") as name:
        try:
            with contextlib.ExitStack() as stack:
                broker = _broker(stack, keep=keep)
                hospitals = stack.enter_context(Hospitals(Path(name), broker.url))
                document["broker"] = {"engine": broker.name, "url": broker.url}
                screen.note(f"broker: {broker.name} at {broker.url}, for this machine only")
                screen.note("three hospitals, each with its part of a public table, get ready ...")
                hospitals.make()
                _tell(broker, hospitals, screen, Path(name), document)
                document["timings_s"]["total"] = round(time.monotonic() - started, 2)
                screen.note(f"everything worked, in {document['timings_s']['total']:.1f} s")
                if keep:
                    _keep(broker, hospitals, screen, document, json=json)
        except (FedmonError, OSError) as error:
            document |= {"ok": False, "error": str(error)}
            if not json:
                print(f"fedmon demo: {error}", file=sys.stderr)
    if json and not (keep and document["ok"]):
        print(json_text.dumps(document, indent=2))
    raise typer.Exit(0 if document["ok"] else 1)


def _broker(stack: contextlib.ExitStack, *, keep: bool) -> BrokerEngine:
    """Start a broker on a free port; one that stays on the usual port, where that is free, so that verbs find it."""
    engine = choose_engine("auto")
    if keep:
        with contextlib.suppress(PortInUseError, BrokerStartError):
            return stack.enter_context(engine(port=USUAL_PORT))
    return stack.enter_context(engine())


def _tell(
    broker: BrokerEngine, hospitals: Hospitals, screen: DemoScreen, folder: Path, document: dict[str, Any]
) -> None:
    settings = ResearcherSettings(
        id=RESEARCHER,
        broker=BrokerSettings(hosts=(Host(host=broker.host, port=broker.port),)),
        folder=folder / "researcher",
    )
    with Federation(settings=settings) as federation:
        story = Story(federation, hospitals, screen, folder)
        try:
            story.run()
        finally:
            document |= story.document


def _keep(
    broker: BrokerEngine, hospitals: Hospitals, screen: DemoScreen, document: dict[str, Any], *, json: bool
) -> None:
    """Say how to connect, then wait until somebody ends us."""
    python = f'import fedmon; fed = fedmon.Federation("{broker.url}").start(); print(fed.nodes())'
    shell = f"mosquitto_sub -h {broker.host} -p {broker.port} -t 'general/monitoring/#' -v"
    owners = {node: f"fedmon node plan list --dir {hospitals.dir_of(node)}" for node in NODES}
    document["connect"] = {"python": python, "mosquitto_sub": shell, "owners": owners}
    if json:
        print(json_text.dumps(document, indent=2), flush=True)
    screen.note("it goes on running until Ctrl-C; connect with")
    print_to = sys.stderr if json else sys.stdout
    print(python, file=print_to)
    print(shell, file=print_to)
    screen.note("and decide as its owners with")
    for line in owners.values():
        print(line, file=print_to, flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.note("stopping")
