"""Energy used, and its emissions."""

from __future__ import annotations

from typing import Any

from fedmon.common.text import joined
from fedmon.report.amounts import energy as amount_of
from fedmon.report.amounts import mass, significant
from fedmon.report.findings.case import Case, Finding, Node, Severity, summed, unknown
from fedmon.report.source import told_number
from fedmon.report.totals import SeriesTotal

JOB_JOULES, NODE_JOULES = "job_energy_joules_total", "node_energy_joules_total"
JOB_GRAMS, NODE_GRAMS = "job_emissions_grams_total", "node_emissions_grams_total"
_METHODS = {
    "psys": "the platform's counter",
    "components": "counters of processors, memory and GPUs",
    "hwmon": "power sensors",
    "gpus": "counters of GPUs alone",
}


def job_joules(node: Node) -> float | None:
    """Return a job's share of the energy of a node; None if it is not known."""
    total = node.one(JOB_JOULES)
    return None if total is None or not total.last else _of_job(node, total)


def _of_job(node: Node, total: SeriesTotal) -> float | None:
    """Return the growth of a counter during the job; None if one reading within the job is too few."""
    if not node.has_begin:
        return total.increase
    # The counter begins with the job, so what it shows at its first reading is the job's too.
    return (total.increase or 0.0) + total.first


def energy(case: Case) -> Finding | None:
    """Say how much energy the job used, or the machines if no share of the job is known."""
    machines = {node.name: total.increase or 0.0 for node in case.nodes
                if (total := node.one(NODE_JOULES)) is not None and total.grown_s > 0}  # fmt: skip
    jobs = {node.name: joules for node in case.nodes if (joules := job_joules(node)) is not None}
    is_of_job = case.job is not None
    amounts, metric = (jobs, JOB_JOULES) if is_of_job and jobs else (machines, NODE_JOULES)
    if not amounts:
        return unknown(case.nodes, "energy", "Energy", JOB_JOULES if is_of_job else NODE_JOULES, NODE_JOULES)
    counters = [total for node in case.nodes if (total := node.one(metric)) is not None]
    joules, seconds = sum(amounts.values()), max(total.grown_s for total in counters)
    power = f", {significant((summed(counters) or 0.0) / seconds)} W on average" if seconds > 0 else ""
    methods = sorted({method for node in case.nodes for labels, _ in node.all(NODE_JOULES)
                      if (method := labels.get("method"))})  # fmt: skip
    who = "The job used" if amounts is jobs else f"The {'machines' if len(machines) > 1 else 'machine'} drew"
    text = f"{who} {amount_of(joules)}{power}."
    if methods:
        shared = ", shared by CPU time and GPU use" if amounts is jobs else ""
        text += f" Source: {joined([_METHODS.get(method, method) for method in methods])}{shared}."
    if is_of_job and amounts is machines:
        text += " The job's share of it is not known."
    lacking = [node for node in case.nodes if node.name not in amounts and (amounts is jobs or not node.counted_by)]
    known = joules if amounts is jobs or not is_of_job else None
    return Finding(
        name="energy",
        severity=Severity.NOTE,
        title="Energy",
        text=text + _lacking(lacking),
        figures={"joules": known, "kilowatt_hours": None if known is None else known / 3.6e6,
                 "machine_joules": sum(machines.values()) or None},
        nodes=tuple(amounts),
    )  # fmt: skip


def _lacking(nodes: list[Node]) -> str:
    """Return a sentence about nodes that are not in a sum."""
    return f" Not measured on {joined([node.name for node in nodes])}." if nodes else ""


def emissions(case: Case) -> Finding | None:
    """Report the emissions of that energy, and the factor."""
    metric = JOB_GRAMS if case.job is not None else NODE_GRAMS
    totals = [(node, total) for node in case.nodes if (total := node.one(metric)) is not None]
    grams = {
        node.name: amount
        for node, total in totals
        if total.last or total.increase is not None
        if (amount := _of_job(node, total) if case.job is not None else total.increase) is not None
    }
    if not grams:
        return unknown(case.nodes, "emissions", "CO2", metric)
    factors = {factor_text(node.host.hardware.get("emission_factor")) for node in case.nodes if node.name in grams}
    total_grams = sum(grams.values())
    lacking = _lacking([node for node in case.nodes if node.name not in grams
                        and not (case.job is None and node.counted_by)])  # fmt: skip
    return Finding(
        name="emissions",
        severity=Severity.NOTE,
        title="CO2",
        text=f"{'The job' if case.job is not None else 'This'} caused {mass(total_grams)} of CO2 equivalent:"
        f" energy x {' or '.join(sorted(factors))}.{lacking}",
        figures={"grams": total_grams},
        nodes=tuple(grams),
    )


def factor_text(factor: Any) -> str:
    """Return an emission factor in words, with where it comes from."""
    grams = told_number(factor, "gco2e_per_kwh") if isinstance(factor, dict) else None
    if grams is None:
        return "a factor that was not recorded"
    pue = told_number(factor, "pue")
    overhead = f" x PUE {significant(pue)}" if pue is not None and pue != 1 else ""
    origin = ", ".join(str(factor[part]) for part in ("region", "name", "date", "source") if factor.get(part))
    return f"{significant(grams)} g/kWh{overhead} ({origin})"
