"""This machine's perf: the processor, the command lines, and a trial of each group."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence

from fedmon.common.settings.values import PerfSettings
from fedmon.node.collectors.base import THIS_MACHINE, Roots, Why, why
from fedmon.node.collectors.files import text_or
from fedmon.node.perf.events import (
    SEPARATOR,
    Group,
    PerfScope,
    Plan,
    architecture,
    candidates,
    make_plan,
    table,
)
from fedmon.node.perf.output import NOT_SUPPORTED, parse_line

PLAIN = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of perf, without the user's language, which changes how numbers are written."""
MACHINE, LISTED = "-a", "-p"
"""Perf's options for the whole machine, and for listed processes and the children that they fork from then on."""
_TIMEOUT_S = 5.0
_PERMISSION = ("perf_event_paranoid", "permission", "not permitted", "access to performance monitoring")


def stat_command(perf: str, groups: Sequence[Group]) -> list[str]:
    """Return the beginning of every command: the groups, and output in columns."""
    return [perf, "stat", "-x", SEPARATOR, *(word for group in groups for word in ("-e", group.spelling()))]


def count(perf: str, groups: Sequence[Group], target: Sequence[str], *, interval_s: float) -> list[str]:
    """Return the command that prints counts every ``interval_s`` on its standard output, until SIGALRM.

    ``target`` is perf's options for the machine, a cgroup or processes.
    """
    return [*stat_command(perf, groups), "-I", str(round(interval_s * 1000)), "--log-fd", "1", *target]


def try_group(perf: str, group: Group, *, whole_machine: bool, paranoia: str) -> str | None:
    """Count one group while ``true`` runs; return None if every event was counted, else the reason.

    Takes some 20 ms, and is given up after 5 s.
    """
    workload = shutil.which("true", path=PLAIN["PATH"]) or "true"
    command = [*stat_command(perf, [group]), *([MACHINE] if whole_machine else []), "--", workload]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=_TIMEOUT_S, env=PLAIN, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{Why.FAILED.value}: perf did not end within {_TIMEOUT_S:g} s when it tried {group.name}"
    except OSError as error:
        return start_problem(perf, error)
    text = done.stderr.decode(errors="replace")
    gaps = {line.event: line.gap for line in map(parse_line, text.splitlines()) if line is not None}
    names = {event.printed(group.name): event.name for event in group.events}
    if not names.keys() <= gaps.keys():
        return exit_reason(text, done.returncode, paranoia)
    for printed, name in names.items() if group.together else ():
        if gaps[printed] == NOT_SUPPORTED:
            return f"{Why.UNSUPPORTED.value}: {name} is not supported by this processor or virtual machine"
        if gaps[printed] is not None:
            return f"{Why.UNSUPPORTED.value}: {name} is not counted together with the other events of its group"
    if all(gaps[printed] is not None for printed in names):
        return f"{Why.UNSUPPORTED.value}: none of its events is supported by this processor or virtual machine"
    return None


def start_problem(perf: str, error: OSError) -> str:
    """Return the reason why perf could not be started."""
    if isinstance(error, FileNotFoundError):
        packages = "Debian: linux-perf, Ubuntu: linux-tools-generic, Fedora: perf"
        return f"{Why.NOT_FOUND.value}: {perf} is not installed ({packages})"
    return why(error).reason


def exit_reason(text: str, status: int, paranoia: str) -> str:
    """Return the reason in perf's last words and exit status."""
    said = " ".join(" ".join(text.split("Usage:", maxsplit=1)[0].split()).split("Run 'perf list'")[0].split())
    lowered = said.lower()
    if any(word in lowered for word in _PERMISSION):
        return f"{Why.NO_PERMISSION.value}: {paranoia}; perf needs CAP_PERFMON for this"
    word = Why.UNSUPPORTED if "not supported" in lowered or "syntax error" in lowered else Why.FAILED
    return f"{word.value}: perf says: {said[:160]}" if said else f"{word.value}: perf ended with status {status}"


_UNKNOWN = "unknown"
_ZEN_4_MODELS = (range(0x10, 0x20), range(0x60, 0xB0))


def processor(roots: Roots) -> tuple[str, str]:
    """Return the processor's table, or "unknown", and its description, by ``/proc/cpuinfo``.

    A virtual machine may claim another processor: only a trial shows which events can be counted.
    """
    first = text_or(roots.proc / "cpuinfo").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    vendor, family, model = (facts.get(key, "") for key in ("vendor_id", "cpu family", "model"))
    name = _named(vendor, int(family), int(model)) if family.isdecimal() and model.isdecimal() else _UNKNOWN
    described = facts.get("model name", "this processor")
    return name, f"{described} (family {family}, model {model})" if family else described


def _named(vendor: str, family: int, model: int) -> str:
    if vendor == "GenuineIntel" and family == 6:
        rows = table()["architectures"].items()
        return next((name for name, row in rows if model in row.get("models", ())), _UNKNOWN)
    if family in (23, 24):  # families of AMD and Hygon
        return "zen2" if family == 23 and model >= 0x30 else "zen"
    if family == 25:
        return "zen4" if any(model in models for models in _ZEN_4_MODELS) else "zen3"
    return _UNKNOWN


class PerfSource:
    """Perf and its usable groups, which are tried out at the first use; every method is safe from any thread."""

    def __init__(self, settings: PerfSettings, *, roots: Roots = THIS_MACHINE) -> None:
        self.settings = settings
        self.roots = roots
        self.perf = shutil.which(settings.command) or settings.command
        self._lock = threading.Lock()
        self._plans: dict[tuple[PerfScope, bool], Plan] = {}

    @property
    def paranoia(self) -> str:
        """The kernel's restriction of perf, in words."""
        level = text_or(self.roots.proc / "sys/kernel/perf_event_paranoid")
        return f"kernel.perf_event_paranoid is {level}" if level else "kernel.perf_event_paranoid cannot be read"

    def plan(
        self, scope: PerfScope, *, whole_machine: bool, stopping: Callable[[], bool] = lambda: False
    ) -> Plan | None:
        """Try each group once, some 20 ms each, and return the usable ones; None if ``stopping`` became true meanwhile.

        With ``whole_machine`` perf looks at all processes, as cgroups need; that takes rights.
        """
        with self._lock:
            plan = self._plans.get((scope, whole_machine))
            if plan is not None:
                return plan
            (name, described), topics = processor(self.roots), tuple(self.settings.groups)
            known = architecture(name)
            groups, missing = candidates(topics, scope=scope, architecture=known, described=described)
            outcome = {}
            for group in groups:
                if stopping():
                    return None
                outcome[group.name] = try_group(self.perf, group, whole_machine=whole_machine, paranoia=self.paranoia)
            return self._plans.setdefault((scope, whole_machine), make_plan(groups, topics, outcome, missing))
