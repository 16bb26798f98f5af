"""A munged of the tests alone: own key, own socket, own folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.batch.daemons import end, launch
from tests.support.waiting import wait_until


class Munge:
    """The authentication service which SLURM's daemons and commands speak to."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        self.folder = folder
        self.socket = folder / "socket"
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        argv = ["munged", "--foreground", f"--socket={self.socket}"]
        argv += [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        with (folder / "stderr").open("wb") as output:
            self._daemon = launch(argv, output=output)

    def wait(self) -> None:
        """Return when credentials can be made."""
        wait_until(self._answers, timeout_s=60, what="munged")

    def _answers(self) -> bool:
        assert self._daemon.poll() is None, (self.folder / "stderr").read_text()
        made = subprocess.run(
            ["munge", f"--socket={self.socket}", "-n"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
        return made.returncode == 0

    def stop(self) -> None:
        """End the daemon."""
        end(self._daemon)
