"""Values that a program reports beside the resources it uses."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric, Unit, rows

_PROGRAM = "the program that reports it"

ROWS: list[Metric] = [
    *rows(
        _PROGRAM,
        Unit.NONE,
        {
            "user_value": "A value that a program reports of itself, such as an accuracy or a loss; null where it was"
            " not finite. `job` is there when the program named one.",
            "user_step": "The program's own count, such as the epoch or iteration, at which the value of this name was"
            " reported; absent when it gave none.",
        },
        labels=("name", "job"),
    ),
    *rows(
        "UserValues",
        Unit.COUNT,
        {
            "user_values_dropped_total": "Values that came faster than they are taken; reported with the values that"
            " follow, once there were any."
        },
    ),
    *rows(
        "Reporter.report_scenario_finished",
        Unit.NONE,
        {"user_scenario_finished": "1 at the moment when a participant reported that its scenario is finished."},
        labels=("scenario",),
    ),
]
