"""The shell verbs ``fedmon broker ...``."""

from __future__ import annotations

import typer

from fedmon.broker.cli.config import config_app
from fedmon.broker.cli.repository import repository_app
from fedmon.broker.cli.start import start
from fedmon.broker.cli.users import user_app

__all__ = ["app"]

app = typer.Typer(
    name="broker",
    help="Run a broker, keep its users, and run the file repository.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(start)
app.add_typer(user_app)
app.add_typer(config_app)
app.add_typer(repository_app)
