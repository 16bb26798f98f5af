"""Makes the pictures of the README; run `python -m tests.docs.pictures`, it takes two minutes.

`fedmon watch` runs on a terminal of tmux beside a demo that is kept, while `fedmon record` records it. Chromium turns
the screen and the report of the record into PNG files.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.docs.gallery import METRICS, fedmon, load
from tests.support.environment import stranger_environment
from tests.support.kept_demo import kept_demo

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS, LINES, MINUTE_S = 110, 12, 64
SESSION = "fedmon-pictures"


def main() -> None:
    """Make both pictures."""
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        drawing = Path(name, "watch.svg")
        drawing.write_text(drawn(screen(Path(name))))
        fedmon("report", "store.fmr", "--output", "report.html", url="", folder=Path(name))
        picture(drawing, folder / "watch.png", width=1380, height=300)
        picture(Path(name, "report.html"), folder / "report.png", width=1380, height=900)


def screen(folder: Path) -> str:
    """Return what `fedmon watch` shows after a minute, with its colours."""
    with kept_demo() as demo, load(folder / "written"):
        environ = stranger_environment(demo.facts["broker"]["url"], folder)
        words = shlex.join([sys.executable, "-m", "fedmon", "watch", "--interval", "1"])
        size = ["-x", str(COLUMNS), "-y", str(LINES)]
        tmux("new-session", "-d", "-s", SESSION, *size, words, environ=environ)
        try:
            chosen = [word for metric in METRICS for word in ("-m", metric)]
            fedmon(
                "record", "store.fmr", "--for", str(MINUTE_S), *chosen, url=demo.facts["broker"]["url"], folder=folder
            )
            return tmux("capture-pane", "-e", "-p", "-t", SESSION)
        finally:
            tmux("kill-session", "-t", SESSION)


def tmux(*words: str, environ: dict[str, str] | None = None) -> str:
    """Run a command of tmux on a server of its own."""
    command = ["tmux", "-L", SESSION, "-f", "/dev/null", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


def drawn(text: str) -> str:
    """Return a capture of a terminal as SVG."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text.rstrip()))
    return console.export_svg(title="fedmon watch")


def picture(page: Path, to: Path, *, width: int, height: int) -> None:
    """Write what a browser shows."""
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}",
         f"--screenshot={to}", page.as_uri()],
        capture_output=True, check=True,
    )  # fmt: skip
    print(f"{to.name}: {to.stat().st_size} bytes")


if __name__ == "__main__":
    main()
