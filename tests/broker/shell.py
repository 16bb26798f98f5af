"""The shell verbs ``fedmon broker ...`` as a user types them."""

from __future__ import annotations

import functools

from tests.support import shell
from tests.support.shell_here import document_here, fedmon_here

FEDMON = [*shell.FEDMON, "broker"]
foreground = functools.partial(shell.foreground, "broker")
fedmon_broker = functools.partial(fedmon_here, "broker")
answer = functools.partial(document_here, "broker")
