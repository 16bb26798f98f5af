"""Notebooks, run from top to bottom by a real kernel."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


def run_notebook(document: Any, folder: Path | None = None) -> None:
    """Run the cells of a notebook, which then holds their outputs. Raises CellExecutionError."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    where = {} if folder is None else {"metadata": {"path": str(folder)}}
    with tempfile.TemporaryDirectory() as sockets:
        # A kernel looks for free ports before it binds them, and another program may take one in between.
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        client = NotebookClient(document, timeout=60, kernel_name="python3", resources=where, config=config)
        client.execute(env=dict(os.environ))
