"""What several verbs of `fedmon experiment` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = (
    "Exit codes: 0 all is well, 1 something critical failed, 2 wrong use, or a plan that cannot work, 3 not found, "
    "4 another process has the run, 5 no connection, 6 not over in time."
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An experiment as .toml or .xml.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run, with its journal.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
EachOption = Annotated[
    bool, typer.Option("--each", help="Each resource starts when it is READY itself; without it when all are.")
]
