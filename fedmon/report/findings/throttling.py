"""What was held back on purpose: by a quota, by heat, by power."""

from __future__ import annotations

from fedmon.report.amounts import duration, listed, number, percent
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import Case, Node
from fedmon.report.findings.cpu import BUSY, cpu_use
from fedmon.report.findings.finding import Finding, Severity, unknown

_QUOTA = "job_cpu_throttled_seconds_total"
_FREQUENCY = "host_cpu_frequency_hertz"
_GPU = "gpu_throttle_active"
_HEAT = {"software_thermal", "hardware_thermal"}
_POWER = {"software_power_cap", "hardware_power_brake", "hardware_slowdown", "board_limit"}
_SLOWED = 0.8
"""CPUs that run at less of their best clock while they are busy are held back; turbo alone costs less than that."""


def cpu_quota(case: Case) -> list[Finding]:
    """Say how long the quota of its cgroup kept a job from CPUs."""
    if case.job is None:
        return []
    shares: dict[str, tuple[float, float]] = {}
    for node in case.nodes:
        held, use = node.one(_QUOTA), cpu_use(node)
        if held is not None and held.increase is not None and use is not None:
            wanted_s = held.increase + use.used_s
            shares[node.name] = (held.increase / wanted_s if wanted_s > 0 else 0.0, held.increase)
    if not shares:
        why = next((node.why_not(_QUOTA) for node in case.nodes), "no node")
        return [unknown("cpu-throttling", "CPU quota", why)]
    most = max(shares, key=lambda name: shares[name])
    share, held_s = shares[most]
    if share < limits.THROTTLED.value:
        severity, text = Severity.GOOD, f"No CPU time to speak of was withheld by a quota ({percent(share)})."
    else:
        severity = Severity.PROBLEM if share >= limits.THROTTLED_MUCH.value else Severity.WARNING
        text = (
            f"The CPU quota of its cgroup withheld {duration(held_s)} of CPU time from the job on {most}:"
            f" {percent(share)} of what it wanted."
        )
    return [
        Finding(
            name="cpu-throttling",
            severity=severity,
            title="CPU quota",
            text=text,
            how="time for which the kernel kept runnable threads from CPUs, by that time and the CPU time used",
            advice="Ask for more CPUs, or start fewer threads." if severity is not Severity.GOOD else "",
            figures={"ratio": share, "throttled_seconds": held_s},
            nodes=(most,),
        )
    ]


def cpu_clock(case: Case) -> list[Finding]:
    """Say when busy CPUs ran far below the best clock that was seen on them."""
    found: dict[str, str] = {}
    lowest = 1.0
    for node in case.nodes:
        clock, best, busy = node.one(_FREQUENCY), node.one("host_cpu_frequency_max_hertz"), node.one(BUSY)
        if clock is None or busy is None or busy.mean < 0.5:
            continue
        top = max(clock.high, best.high if best is not None else 0.0)
        ratio = clock.mean / top if top > 0 else 1.0
        lowest = min(lowest, ratio)
        if ratio <= _SLOWED:
            hot = max(node.all("host_temperature_celsius"), key=lambda each: each[1].high, default=None)
            heat = f", up to {number(hot[1].high)} °C" if hot is not None else ""
            found[node.name] = f"{node.name} {clock.mean / 1e9:.1f} of {top / 1e9:.1f} GHz{heat}"
    if not found:
        return []
    return [
        Finding(
            name="cpu-clock",
            severity=Severity.WARNING,
            title="CPUs below their best clock",
            text=f"Busy CPUs ran below the best clock seen on them: {listed(list(found.values()))}.",
            how="mean clock of all CPUs by the highest seen, on machines whose CPUs were busy for half of the time",
            advice="Heat, a power limit, wide vector instructions or a governor that saves power can be the cause.",
            figures={"ratio": lowest},
            nodes=tuple(found),
        )
    ]


def gpu_clock(case: Case) -> list[Finding]:
    """Say how long heat or a power limit held the clocks of GPUs down."""
    heat = _held(case, _HEAT)
    power = _held(case, _POWER)
    found: list[Finding] = []
    for name, title, shares, cause, advice in (
        ("gpu-thermal", "GPU slowed by heat", heat, "heat", "Tell the operator: cooling does not keep up."),
        ("gpu-power", "GPU slowed by its power limit", power, "a power limit",
         "Normal at full load; a higher limit would make it faster, a lower one save energy."),
    ):  # fmt: skip
        past = sorted((one for one in shares if shares[one] >= limits.THROTTLED.value), key=lambda one: -shares[one])
        if not past:
            continue
        share = shares[past[0]]
        is_bad = cause == "heat"
        found.append(
            Finding(
                name=name,
                severity=(Severity.PROBLEM if share >= limits.THROTTLED_MUCH.value else Severity.WARNING)
                if is_bad
                else Severity.NOTE,
                title=title,
                text=f"Clocks were held down by {cause}:"
                f" {listed([f'{one} for {percent(shares[one])} of the time' for one in past])}.",
                how="share of the samples in which the driver named this reason, weighted by time",
                advice=advice,
                figures={"ratio": share},
                nodes=tuple(past),
            )
        )
    return found


def _held(case: Case, reasons: set[str]) -> dict[str, float]:
    """Return for each GPU the largest share of the time for which one of some reasons held."""
    return {f"GPU {gpu} of {node.name}": share for node in case.nodes for gpu, share in _shares(node, reasons).items()}


def _shares(node: Node, reasons: set[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, total in node.all(_GPU):
        if labels.get("reason") in reasons:
            gpu = labels.get("gpu", "?")
            found[gpu] = max(found.get(gpu, 0.0), total.mean)
    return found
