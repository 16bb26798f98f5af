"""Runs probes, each in a child of its own, and prints what each could do: run inside a sandbox, or beside it.

A probe is a function that gets facts about what lies outside. It returns what it could do that a plan must not; it
returns nothing, or fails, where it could not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # laid out there as Machine.lay says

from tests.node.runs.probes import of_files, of_kernel, of_limits, of_network, of_processes

MODULES = (of_network, of_files, of_processes, of_kernel, of_limits)
_TIMEOUT_S = 8


def probes() -> dict[str, object]:
    """Return all probes by name."""
    return {
        name: each
        for module in MODULES
        for name, each in vars(module).items()
        if callable(each) and getattr(each, "__module__", "") == module.__name__ and not name.startswith("_")
    }


def tried(probe: object, facts: dict[str, object]) -> str:
    """Return what a probe could do; empty for nothing, also where its process was ended for trying."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_TIMEOUT_S)
        try:
            done = probe(facts)  # type: ignore[operator]
            os.write(writing, (str(done) if done else "").encode()[:2000])
        except BaseException as error:  # noqa: BLE001 - whatever stops a probe, it did not succeed
            sys.stderr.write(f"{getattr(probe, '__name__', probe)}: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return said.decode(errors="replace")


if __name__ == "__main__":
    with open(3) as file:
        asked = json.load(file)
    found = probes()
    chosen = asked["probes"] or sorted(found)
    print(json.dumps({name: tried(found[name], asked["facts"]) for name in chosen}))
