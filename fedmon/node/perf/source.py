"""What this machine's perf can count: its processor, the command lines of perf, and a probe of each group."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from fedmon.common.settings.values import PerfSettings
from fedmon.node.collectors.base import Roots, Why
from fedmon.node.perf.events import DEFAULT_COUNTERS, SEPARATOR, Group, PerfScope, Plan, architecture, choose, make_plan
from fedmon.node.perf.output import NOT_SUPPORTED, parse_line


class WholeMachine(msgspec.Struct, frozen=True, tag=True):
    """Everything that runs."""


class InCgroup(msgspec.Struct, frozen=True, tag=True):
    """Everything that runs in one cgroup now and later; ``name`` is as perf calls it."""

    name: str


class Processes(msgspec.Struct, frozen=True, tag=True):
    """These processes with all their threads, and every child that they fork from now on."""

    pids: tuple[int, ...]


Target = WholeMachine | InCgroup | Processes


def count(perf: str, groups: Sequence[Group], target: Target, *, interval_s: float, log_fd: int) -> list[str]:
    """Return the command that prints counts every ``interval_s`` onto an open descriptor, until SIGINT."""
    command = _stat(perf, groups)
    command += ["-I", str(round(interval_s * 1000)), "--log-fd", str(log_fd)]
    match target:
        case WholeMachine():
            return [*command, "-a"]
        case InCgroup():
            return [*command, "-a", "--for-each-cgroup", target.name]
        case Processes():
            return [*command, "-p", ",".join(map(str, target.pids))]


def try_out(perf: str, group: Group, workload: str, *, whole_machine: bool) -> list[str]:
    """Return the command that counts one group while a trivial program runs."""
    return [*_stat(perf, [group]), *(["-a"] if whole_machine else []), "--", workload]


def _stat(perf: str, groups: Sequence[Group]) -> list[str]:
    command = [perf, "stat", "-x", SEPARATOR]
    for group in groups:
        command += ["-e", group.spelling()]
    return command


PLAIN = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of perf: without the user's language, which changes how numbers are written."""

_TIMEOUT_S = 3.0
_PERMISSION = ("perf_event_paranoid", "permission", "not permitted", "access to performance monitoring")


def try_group(perf: str, group: Group, *, whole_machine: bool, paranoia: str) -> str | None:
    """Run one group while ``true`` runs; return None when every event was counted, else the reason.

    Takes some 20 ms, and is given up after 3 s.
    """
    workload = shutil.which("true", path=PLAIN["PATH"]) or "true"
    command = try_out(perf, group, workload, whole_machine=whole_machine)
    try:
        with signals_reach_children():
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_TIMEOUT_S,
                env=PLAIN,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"{Why.FAILED.value}: perf did not end within {_TIMEOUT_S:g} s when it tried {group.name}"
    except OSError as error:
        return not_startable(perf, error)
    text = done.stderr.decode(errors="replace")
    counted = {line.event: line for line in map(parse_line, text.splitlines()) if line is not None}
    for event in group.events:
        line = counted.get(event.printed(group.name))
        if line is None:
            return why_it_ended(text, done.returncode, paranoia)
        if line.gap == NOT_SUPPORTED and group.together:
            return f"{Why.UNSUPPORTED.value}: {event.name} is not supported by this processor or virtual machine"
        if line.gap is not None and group.together:
            return f"{Why.UNSUPPORTED.value}: {event.name} is not counted together with the other events of its group"
    if all(counted[event.printed(group.name)].gap is not None for event in group.events):
        return f"{Why.UNSUPPORTED.value}: none of its events is supported by this processor or virtual machine"
    return None


@contextlib.contextmanager
def signals_reach_children() -> Iterator[None]:
    """Let the programs that this thread starts meanwhile hear the signals by which they are ended.

    A program inherits which signals its starter blocks, and the threads of a node block those that end it: perf would
    be deaf to SIGINT, and to whoever wants to end it by hand. Linux gives a signal meant for the whole process to the
    main thread first, so that the node loses none to this thread.
    """
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def not_startable(perf: str, error: OSError) -> str:
    """Say why perf could not be started."""
    if isinstance(error, FileNotFoundError):
        return (
            f"{Why.NOT_FOUND.value}: {perf} is not installed (Debian: linux-perf, Ubuntu: linux-tools-generic, "
            "Fedora: perf)"
        )
    if isinstance(error, PermissionError):
        return f"{Why.NO_PERMISSION.value}: {perf} may not be started"
    return f"{Why.FAILED.value}: {perf} cannot be started: {error.strerror or type(error).__name__}"


def why_it_ended(text: str, status: int, paranoia: str) -> str:
    """Turn what perf said at its end into one reason."""
    said = " ".join(" ".join(text.split("Usage:", maxsplit=1)[0].split()).split("Run 'perf list'")[0].split())
    lowered = said.lower()
    if any(word in lowered for word in _PERMISSION):
        return f"{Why.NO_PERMISSION.value}: {paranoia}; perf needs CAP_PERFMON for this"
    if (pmu := re.search(r"[Cc]annot find PMU `([^'`]+)'", said)) is not None:
        return f"{Why.UNSUPPORTED.value}: the kernel knows no counters called {pmu[1]} here (a virtual machine?)"
    if (event := re.search(r"The (\S+) event is not supported", said)) is not None:
        return f"{Why.UNSUPPORTED.value}: {event[1]} is not supported by this processor or virtual machine"
    if "not supported" in lowered or "syntax error" in lowered:
        return f"{Why.UNSUPPORTED.value}: perf says: {said[:160]}"
    if not said:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{Why.FAILED.value}: perf {how} and said nothing"
    return f"{Why.FAILED.value}: perf says: {said[:160]}"


# Family and model of CPUID, and the name of our table. Source: Linux tools/perf/pmu-events/arch/x86/mapfile.csv.
_INTEL: dict[str, tuple[int, ...]] = {
    "sandybridge": (0x2A, 0x2D),
    "ivybridge": (0x3A, 0x3E),
    "haswell": (0x3C, 0x3F, 0x45, 0x46),
    "broadwell": (0x3D, 0x47, 0x4F, 0x56),
    "skylake": (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6),
    "skylake_x": (0x55,),
    "icelake": (0x7D, 0x7E, 0xA7),
    "icelake_x": (0x6A, 0x6C),
}
_BY_MODEL = {("GenuineIntel", 6, model): name for name, models in _INTEL.items() for model in models}
_ZEN_2_FROM_MODEL = 0x30
_ZEN_4_MODELS = (range(0x10, 0x20), range(0x60, 0xB0))
_ARCHSPEC_NAMES = {"skylake_avx512": "skylake_x", "cascadelake": "skylake_x"}


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """The processor; ``architecture`` is the name of a table, or a name that has none."""

    architecture: str
    described: str
    runs_two_threads: bool


def processor(roots: Roots) -> Processor:
    """Name the processor from ``/proc/cpuinfo``; where that does not tell, archspec guesses from its abilities.

    A virtual machine may claim to be another processor than it is: only a probe shows what can be counted.
    """
    facts = _cpuinfo(roots.proc / "cpuinfo")
    vendor, model_name = facts.get("vendor_id", ""), facts.get("model name", "this processor")
    family, model = _number(facts.get("cpu family")), _number(facts.get("model"))
    name = _BY_MODEL.get((vendor, family, model)) or _amd(vendor, family, model) or _guess(roots)
    return Processor(
        architecture=name,
        described=f"{model_name} (family {family}, model {model})" if family >= 0 else name,
        runs_two_threads=_text(roots.sys / "devices/system/cpu/smt/active") != "0",
    )


def watchdog_takes_one(roots: Roots) -> bool:
    """Tell whether the kernel's watchdog for locked-up CPUs holds a counter of each core."""
    return _text(roots.proc / "sys/kernel/nmi_watchdog") == "1"


def paranoia(roots: Roots) -> str:
    """Say in words how far the kernel restricts perf."""
    level = _text(roots.proc / "sys/kernel/perf_event_paranoid")
    return f"kernel.perf_event_paranoid is {level}" if level else "kernel.perf_event_paranoid cannot be read"


def cgroup_name(roots: Roots, folder: Path) -> str | None:
    """Return how perf calls a cgroup, given its folder; None where perf does not see that hierarchy.

    Perf looks for the mount of the version 1 controller ``perf_event``, else for version 2, and wants the path below
    it. Source: Linux tools/lib/api/fs/cgroup.c.
    """
    first: dict[bool, Path] = {}
    for line in _text(roots.proc / "self/mounts").splitlines():
        parts = line.split(" ")
        if len(parts) < 4:
            continue
        is_v1 = parts[2] == "cgroup" and "perf_event" in parts[3].split(",")
        if is_v1 or parts[2] == "cgroup2":
            first.setdefault(is_v1, Path(parts[1].encode().decode("unicode_escape")))
    mount = first.get(True) or first.get(False)
    if mount is None or not folder.is_relative_to(mount):
        return None
    name = str(folder.relative_to(mount))
    # Perf separates names by commas, and the root's own name is ".".
    return None if "," in name or name == "." else name


def _amd(vendor: str, family: int, model: int) -> str | None:
    if vendor not in ("AuthenticAMD", "HygonGenuine"):
        return None
    if family in (23, 24):
        return "zen2" if family == 23 and model >= _ZEN_2_FROM_MODEL else "zen"
    if family == 25:
        return "zen4" if any(model in models for models in _ZEN_4_MODELS) else "zen3"
    return None


def _guess(roots: Roots) -> str:
    if roots.simulated:
        return "unknown"
    from archspec.cpu import host

    name = str(host().name)
    return _ARCHSPEC_NAMES.get(name, name)


def _cpuinfo(path: Path) -> dict[str, str]:
    """Return the facts of the first processor."""
    first = _text(path).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _colon, value in pairs}


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else -1


def _text(path: Path) -> str:
    """Return a file's text without the line's end; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""


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
        self._plans: dict[tuple[PerfScope, bool], Plan] = {}

    @property
    def paranoia(self) -> str:
        """How far the kernel restricts perf, in words."""
        return paranoia(self.roots)

    def cgroup_name(self, folder: Path) -> str | None:
        """Return how perf calls a cgroup; None where perf does not see its hierarchy."""
        return cgroup_name(self.roots, folder)

    def plan(
        self, scope: PerfScope, *, whole_machine: bool, stopping: Callable[[], bool] = lambda: False
    ) -> Plan | None:
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

    def _probe(self, scope: PerfScope, stopping: Callable[[], bool], *, whole_machine: bool) -> Plan | None:
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
