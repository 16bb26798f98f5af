"""The options that the researcher's verbs share."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from fedmon.researcher.federation import Federation

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong use or settings, 3 not found, 4 refused, 5 no connection, 6 no answer in "
    "time. A node that is known to be offline is an error only when it was named."
)

BrokerOption = Annotated[
    str | None, typer.Option("--broker", "-b", metavar="URL", help="The broker; without it the one of your settings.")
]
SettingsOption = Annotated[
    Path | None, typer.Option("--settings", help="Your settings file, instead of the usual one.")
]
IdOption = Annotated[str | None, typer.Option("--researcher", help="Your researcher id, instead of the one kept.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait at most.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")]
NodesOption = Annotated[
    list[str] | None, typer.Option("--node", "-n", help="Only this node; may be given several times.")
]
ForOption = Annotated[
    float | None, typer.Option("--timeout", "-t", min=0.1, help="Seconds to go on; without it until Ctrl-C.")
]


def opened(broker: str | None, settings: Path | None, researcher: str | None, timeout: float) -> Federation:
    """Return a federation for one verb: an instance of its own, beside an open notebook of the same researcher."""
    instance = f"shell-{secrets.token_hex(4)}"
    return Federation(broker, settings=settings, researcher_id=researcher, timeout_s=timeout, instance=instance)
