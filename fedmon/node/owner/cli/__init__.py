"""The verbs of `fedmon node`."""

from __future__ import annotations

from fedmon.node.owner.cli import audit, dataset, job, node, plan, policy, runs
from fedmon.node.owner.cli.shell import EXIT_CODES, group

app = group(
    "node",
    "Run and own a node beside your data.",
    epilog=EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (node.init, node.start, node.status, node.stop, node.probe):
    app.command(verb.__name__, epilog=EXIT_CODES)(verb)
# A negative value is no option.
app.command("add-scalar", epilog=EXIT_CODES, context_settings={"ignore_unknown_options": True})(job.add_scalar)
for verbs in (dataset.app, plan.app, policy.policy, job.app, runs.app, audit.app, policy.config):
    app.add_typer(verbs)
