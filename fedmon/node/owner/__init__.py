"""What a node's owner can have done: the commands behind `fedmon node`.

A running daemon runs them on its router thread, for whoever comes through the control socket; the shell runs them
itself while the daemon is stopped.
"""

from __future__ import annotations

from fedmon.node.owner.commands import COMMANDS, run
from fedmon.node.owner.desk import Desk

__all__ = ["COMMANDS", "Desk", "run"]
