"""`python -m fedmon` is the `fedmon` command."""

from __future__ import annotations

from fedmon.cli import main

main()
