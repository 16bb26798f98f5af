"""The name of a process in lists of processes, which tells an owner what it is."""

from __future__ import annotations

import ctypes

from fedmon.node.runs.sandbox import kernel

LAUNCHER, KEEPER = b"fedmon-launcher", b"fedmon-keeper"


def name_process(name: bytes) -> None:
    """Give this process a name of at most 15 bytes. Source: Linux man-pages, prctl(2), PR_SET_NAME."""
    text = ctypes.create_string_buffer(name)
    kernel.prctl(kernel.PR_SET_NAME, ctypes.addressof(text))
