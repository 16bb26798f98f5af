"""The verbs of `fedmon node`."""

from __future__ import annotations

from fedmon.node.owner.cli import audit, dataset, job, plan, policy, results, runs
from fedmon.node.owner.cli.node import app
from fedmon.node.owner.cli.shell import verb

# A negative value is no option.
verb(app, "add-scalar", context_settings={"ignore_unknown_options": True})(job.add_scalar)
verb(app, "released")(results.released)
for verbs in (
    plan.requests, dataset.app, plan.app, policy.policy, job.app, runs.app, results.app, audit.app, policy.config,
):  # fmt: skip
    app.add_typer(verbs)

__all__ = ["app"]
