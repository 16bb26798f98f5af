"""The roles of a federation's parties; each has a listener, a password file and an access list of its own."""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """What a user of the broker is; the order is the order of the listeners' ports."""

    NODE = "node"
    RESEARCHER = "researcher"
    MONITOR = "monitor"
    ADMIN = "admin"
    JOB = "job"

    @property
    def file_name(self) -> str:
        """Name of this role's password file and access list."""
        return f"{self.value}s"

    @property
    def port_offset(self) -> int:
        """How far the port of this role's listener lies above the first."""
        return list(Role).index(self)
