"""The verbs of `fedmon experiment`."""

from __future__ import annotations

import typer

from fedmon.experiment.cli import documents, reports, runs
from fedmon.experiment.cli.options import EPILOG

app = typer.Typer(
    name="experiment",
    help="Check, run, watch and report on experiments over a federation.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
documents.add_check(app)
runs.add_to(app)
documents.add_graph(app)
reports.add_to(app)
