"""The end of the job, and the method that found it."""

from __future__ import annotations

import signal

from fedmon.common.text import duration, joined, moment, percent
from fedmon.report.findings import thresholds as limits
from fedmon.report.findings.case import COMMAND, Case, Finding, Severity
from fedmon.report.source import told_number


def ending(case: Case) -> Finding | None:
    """Report how the job ended: exit code, signal, time limit, or unknown."""
    if case.job is None:
        return None
    code, reason = case.end["exit_code"], str(case.end.get("reason") or "")
    elapsed_s = case.elapsed_s
    after = f" after {duration(elapsed_s)}" if elapsed_s is not None else ""
    why = f" Noted reason: {reason}." if reason and (code is None or f"exit code {code}" not in reason) else ""
    if failed := int(told_number(case.document, "failed_before") or 0):
        why += f" An earlier command of it failed: {exit_text(failed)}."
    if code is None and case.ended_t is None:
        until = f" The last sample is of {moment(span[1])}." if (span := case.span) is not None else ""
        text = f"How the job ended was not recorded: it may still run, or the tool was killed.{until}"
        severity = Severity.UNKNOWN
    elif code is None:
        severity, text = Severity.NOTE, f"The measuring ended{after}; the job's exit code is unknown."
    elif code == 0:
        severity, text = Severity.WARNING if failed else Severity.GOOD, f"The job ended with exit code 0{after}."
    else:
        severity, text = Severity.PROBLEM, f"The job failed: {exit_text(code)}{after}."
    return Finding(
        name="ending",
        severity=severity,
        title="How it ended",
        text=text + why,
        advice="Look at its output for the cause." if code or failed else "",
        figures={"exit_code": None if code is None else float(code), "elapsed_seconds": elapsed_s},
    )


def exit_text(code: int) -> str:
    """Return an exit code in words; above 128 and below 0 it names a signal."""
    number_of = code - 128 if code > 128 else -code
    try:
        return f"exit code {code}, {signal.Signals(number_of).name}" if code > 128 or code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def time_limit(case: Case) -> Finding | None:
    """Report the share of its time limit that a job used."""
    limit, elapsed_s = told_number(case.document, "time_limit_s"), case.elapsed_s
    if case.job is None or limit is None or limit <= 0 or elapsed_s is None:
        return None
    ratio = elapsed_s / limit
    near = ratio >= limits.TIME_LIMIT_NEAR
    return Finding(
        name="time-limit",
        severity=Severity.WARNING if near else Severity.GOOD,
        title="Time limit",
        text=f"It ran for {duration(elapsed_s)} of the {duration(limit)} that it was given ({percent(ratio)}).",
        advice="Ask for more time, or save checkpoints: a slower run would be cut off." if near else "",
        figures={"ratio": ratio, "elapsed_seconds": elapsed_s, "limit_seconds": limit},
    )


def finder(case: Case) -> Finding | None:
    """Report how the processes of the job were found, and the confidence."""
    if case.job is None:
        return None
    methods = {str(node.document["method"]): str(node.document.get("confidence") or "")
               for node in case.nodes if node.document.get("method")}  # fmt: skip
    if not methods or set(methods) == {COMMAND}:  # then nothing was searched
        return None
    unsure = [method for method, confidence in methods.items() if confidence == "low"]
    told = joined([f"{method} (confidence: {confidence})" if confidence else method
                   for method, confidence in methods.items()])  # fmt: skip
    return Finding(
        name="finder",
        severity=Severity.WARNING if unsure else Severity.NOTE,
        title="How the job was found",
        text=f"The processes of the job were found by: {told}."
        + (" Others may be included, or some may be missing." if unsure else ""),
        advice="Start the job as 'fedmon job -- COMMAND' if possible: then it is certain." if unsure else "",
    )
