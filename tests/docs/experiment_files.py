"""Files of experiments and what resources take; `python -m tests.docs.experiment_files > docs/experiment-files.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.factory import ResourceFactory

RTYPES = (
    "fedmon::Node", "fedmon::Dataset", "fedmon::TrainingPlan", "fedmon::Job", "fedmon::Monitor", "fedmon::Aggregator",
    "fedmon::Collector", "local::Process",
)  # fmt: skip
EVERYWHERE = ("critical", "hardRelease")

HEAD = """# Experiments in files

Files for `fedmon experiment` and `ExperimentController.load`. [two_steps.toml](examples/experiments/two_steps.toml)
needs this machine alone, [federated_mean.toml](examples/experiments/federated_mean.toml) the demo. Made by
`python -m tests.docs.experiment_files > docs/experiment-files.md`.

The broker is that of your [settings](settings.md#of-a-researcher): `mqtt://localhost:1883` unless `researcher.toml` or
`FEDMON_BROKER_URL` says otherwise; `--broker` overrides both. Paths in a file are relative to the file.

## `[experiment]`

| key | meaning |
|---|---|
| `id` | its name, and the name of the folder of its runs |
| `local_dir` | the place of that folder, relative to the file; `--dir` overrides it |
| `run_id`, `max_running`, `persist` | as in Python; a run makes its own `run_id` |

## `[failures]`

The effect of a failed resource; the default policy is `"critical"`.

| key | meaning |
|---|---|
| `policy` | `"critical"`: a critical one ends it; `"optional"`: none does; `"quorum"`: it ends when too few are left |
| `at_least` | how many must be left, of `of` or `rtype` |
| `of` | a list of names |
| `rtype` | a type, in place of `of`: all resources of it and of types derived from it |
| `quorums` | more of them: a list of `{ at_least = 2, of = ["a", "b", "c"] }` |

A resource outside of all quorums counts by its `critical`. In XML the table is
`<failures policy="quorum"><quorum at_least="2" group="[1, 2, 3]"/></failures>`.

## `[[resource]]`

Resources are numbered as they come: the first is guid 1.

| key | meaning |
|---|---|
| `type` | such as `"fedmon::Job"`; nothing else is needed |
| `name` | its name in conditions and `connect` (default: its guid) |
| `connect` | a list of names of resources that it works with |
| `attributes` | a table of the type's attributes, see below; if a type has a set hook, with its result |
| `deploy`, `start`, `stop` | lists of conditions; all of them must hold |
| `set` | a list of `{ attribute = "rate", value = 1, when = "after train is STARTED" }` |
| `retry` | by verb: `retry.start = { times = 2, delay_s = 0.5, factor = 2.0, max_delay_s = 60.0 }` |
| `timeouts` | by verb, in seconds: `timeouts.deploy = 3600.0`, such as for an approval |
| `guid`, `traces`, `state`, `times` | written by `ec.save()`; a run begins with all NEW |

A retry repeats a verb that raised or timed out. A command or a job that was STARTED and ended badly is not run again.

A condition is a text, in which `after` and `when` may be left out:

| text | holds when |
|---|---|
| `after train is STOPPED` | train ended well |
| `after train is STARTED for 2s` | train has been STARTED for 2 s |
| `[a, b] are READY` | all of them are |
| `2 of [a, b, c] are STOPPED within 60s` | two are; the action fails after a minute |
| `when train.accuracy > 0.9 for 3 samples` | train reported this three times in a row; also `<`, `>=`, `90 %` |
| `when watch.gpu_power_watts{gpu="0"} > 200` | watch, a Monitor, reported this of one of several GPUs |

## Attributes

Keys of `attributes`, and arguments of `register_resource`. Every resource has `critical` (true: the experiment fails
with it) and `hardRelease` (false: a release does not take it out of the experiment).
"""


def main() -> None:
    """Print the page."""
    sys.stdout.write(page())


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(line for rtype in RTYPES for line in _type(rtype))])


def _type(rtype: str) -> Iterator[str]:
    cls = ResourceFactory.get_resource_type(rtype)
    attributes = [each for each in cls.get_attributes() if each.name not in EVERYWHERE]
    yield f"### `{rtype}`\n\n{cls.get_help()}\n"
    yield "| attribute | takes | default | meaning |\n|---|---|---|---|"
    for each in attributes:
        if not each.has_flag(Flags.NoWrite):
            yield f"| `{each.name}` | {each.takes()} | {_default(each)} | {each.help} |"
    told = [each for each in attributes if each.has_flag(Flags.NoWrite)]
    if told:
        yield "\nAttributes that it sets itself:\n"
        yield from (f"- `{each.name}`: {each.help}" for each in told)
    traces = [f"`{each.name}`" for each in cls.get_traces()]
    if traces:
        yield f"\nTraces: {', '.join(traces)}."
    yield ""


def _default(attribute: Attribute) -> str:
    return "" if attribute.default in (None, "") else f"`{attribute.default}`"


if __name__ == "__main__":
    main()
