"""Which worker runs which tests: all of a file on one, and there also the files that share what is dear to start."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # xdist's own

TOGETHER = {
    "three hospitals": ("tests/docs/test_federated_examples.py", "tests/docs/test_experiments_guide.py"),
    "two nodes": ("tests/experiment/types/",),
    "processes of nobody": ("tests/node/runs/test_sandbox_ordinary.py", "tests/node/runs/test_sandbox_probes.py"),
}
"""Files and folders whose tests share a fixture of their package or a port, each under a name for what they share."""


class Placement(LoadScopeScheduling):  # type: ignore[misc]  # xdist's own
    """Hands out whole files, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        """Return what is handed out in one piece with a test."""
        file = nodeid.partition("::")[0]
        return next((name for name, paths in TOGETHER.items() if file.startswith(paths)), file)
