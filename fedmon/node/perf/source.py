"""What this machine's perf can count, found out once for all collectors of the node."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from fedmon.common.settings.values import PerfSettings
from fedmon.node.collectors.base import Roots
from fedmon.node.perf.architectures import architecture
from fedmon.node.perf.event import Scope
from fedmon.node.perf.groups import DEFAULT_COUNTERS, choose
from fedmon.node.perf.machine import cgroup_name, paranoia, processor, watchdog_takes_one
from fedmon.node.perf.plan import Plan, make_plan
from fedmon.node.perf.probe import try_group


class PerfSource:
    """Finds perf and probes its groups when first asked; every method is safe from any thread.

    ``begin_after_s`` is how long a target is there before anything is started to count it.
    """

    def __init__(self, settings: PerfSettings, *, roots: Roots | None = None, begin_after_s: float = 0.0) -> None:
        self.begin_after_s = begin_after_s
        self.settings = settings
        self.roots = roots if roots is not None else Roots()
        self.perf = shutil.which(settings.command) or settings.command
        self._lock = threading.Lock()
        self._plans: dict[tuple[Scope, bool], Plan] = {}

    @property
    def paranoia(self) -> str:
        """How far the kernel restricts perf, in words."""
        return paranoia(self.roots)

    def cgroup_name(self, folder: Path) -> str | None:
        """Return how perf calls a cgroup; None where perf does not see its hierarchy."""
        return cgroup_name(self.roots, folder)

    def plan(self, scope: Scope, *, whole_machine: bool, stopping: Callable[[], bool] = lambda: False) -> Plan | None:
        """Probe each group and return what is usable; takes some 20 ms for each, and is done once.

        ``whole_machine`` is whether perf is to look at all processes, which cgroups need too and which takes rights.
        None when ``stopping`` became true meanwhile.
        """
        with self._lock:
            known = self._plans.get((scope, whole_machine))
            if known is None:
                known = self._probe(scope, stopping, whole_machine=whole_machine)
                if known is not None:
                    self._plans[scope, whole_machine] = known
            return known

    def _probe(self, scope: Scope, stopping: Callable[[], bool], *, whole_machine: bool) -> Plan | None:
        here = processor(self.roots)
        table = architecture(here.architecture)
        counters = DEFAULT_COUNTERS
        if table is not None:
            counters = table.counters if here.runs_two_threads else table.counters_alone
            counters -= here.architecture.startswith("zen") and watchdog_takes_one(self.roots)
        topics = tuple(self.settings.groups)
        choice = choose(topics, scope=scope, architecture=table, described=here.described, counters=counters)
        text, outcome = self.paranoia, {}
        for group in choice.groups:
            if stopping():
                return None
            outcome[group.name] = try_group(self.perf, group, whole_machine=whole_machine, paranoia=text)
        return make_plan(choice.groups, topics, outcome, choice.missing)
