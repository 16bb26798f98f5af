"""The verbs of `fedmon experiment`, and the options that they share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An experiment as .toml or .xml.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run, with its journal.")]
EachOption = Annotated[
    bool, typer.Option("--each", help="Start each resource when it is READY (default: when all are).")
]


def connected(
    broker: str | None, settings: Path | None, researcher: str | None
) -> AbstractContextManager[Federation | None]:
    """Return the federation that options name; without options None, for one that is opened when it is needed."""
    from fedmon.researcher.federation import Federation

    if broker is None and settings is None and researcher is None:
        return nullcontext()
    return Federation(broker, settings=settings, researcher_id=researcher)
