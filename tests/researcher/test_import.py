"""What importing the researcher's side costs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "typer",
    "rich",
    "click",
    "requests",
    "tabulate",
    "psutil",
    "python_minifier",
    "platformdirs",
    "pynvml",
    "numpy",
)


def test_the_federation_is_imported_without_the_node_and_without_what_is_used_later() -> None:
    code = (
        "import sys, fedmon; before = set(sys.modules); fedmon.Federation\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        f"print(sorted(names & set({HEAVY!r})), [name for name in sys.modules if name.startswith('fedmon.node')])\n"
        "print([name for name in before if name.startswith('fedmon.researcher')])"
    )

    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert finished.stdout.splitlines() == ["[] []", "[]"]
