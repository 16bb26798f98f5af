"""The verbs of `fedmon node`."""

from __future__ import annotations

import typer

from fedmon.node.owner.cli import audit, config, dataset, job, lifecycle, making, plan, policy, probe, runs, value
from fedmon.node.owner.cli.screen import EXIT_CODES

app = typer.Typer(
    name="node",
    help="Run and own a node beside your data.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
making.add_to(app)
lifecycle.add_to(app)
probe.add_to(app)
value.add_to(app)
app.add_typer(dataset.app)
app.add_typer(plan.app)
app.add_typer(policy.app)
app.add_typer(job.app)
app.add_typer(runs.app)
app.add_typer(audit.app)
app.add_typer(config.app)
