"""The plan that tries a level of confinement: it returns a thing that it could do and should not."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from fedmon import TrainingPlan

if TYPE_CHECKING:
    from fedmon.plan.context import PlanContext


class SelfTest(TrainingPlan):
    """Looks around in the sandbox."""

    def run(self, context: PlanContext) -> dict[str, str]:
        """Return the ``problem`` with this level, empty if there is none."""
        level, secret, outside = (context.arguments[name] for name in ("level", "secret", "outside"))
        if level == "bubblewrap":
            facts = dict(
                line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
            )
            if facts["CapEff"].strip("0") or facts["NoNewPrivs"] != "1" or facts["Seccomp"] != "2":
                return {"problem": "capabilities, no_new_privs or seccomp are wrong"}
            if Path(f"/proc/{outside}/stat").exists() and outside > 100:
                return {"problem": "processes of this machine are visible"}
        if level != "limits":
            try:
                return {"problem": f"files of this machine can be read: {Path(secret).read_text()}"}
            except OSError:
                pass
        try:
            socket.socket(socket.AF_INET).close()
        except OSError:
            pass
        else:
            return {"problem": "an internet socket can be opened"}
        if set(os.environ) - {"PATH", "LANG", "HOME", "TMPDIR", "FEDMON_JOB_ID", "PWD", "LC_CTYPE"}:
            return {"problem": f"the environment holds more than it should: {sorted(os.environ)}"}
        Path(os.environ["TMPDIR"], "try").write_text("text")
        return {"problem": ""}
