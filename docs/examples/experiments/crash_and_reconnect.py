"""A DAG of commands goes on after the process that began it was killed: python crash_and_reconnect.py."""

import os
import signal
import subprocess
import sys
from itertools import pairwise

from fedmon.experiment import ExperimentController, ResourceAction, ResourceState

STEPS = ["sleep 1; echo first", "echo second", "echo third"]


def begin() -> None:
    """Start the first of three commands, print the folder of the run, and die as if the machine had lost power."""
    ec = ExperimentController("crash")
    guids = [ec.register_resource("local::Process", command=["sh", "-c", step]) for step in STEPS]
    for before, after in pairwise(guids):
        ec.register_condition(after, ResourceAction.START, before, ResourceState.STOPPED)
    ec.deploy()
    ec.wait_started(guids[:1])
    print(ec.run_dir, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Have another process begin the run and die, take the run up again, and print what the commands printed."""
    died = subprocess.run([sys.executable, __file__, "begin"], capture_output=True, text=True, check=False)
    with ExperimentController.reconnect(died.stdout.strip()) as ec:
        if not ec.wait_finished(ec.resources, timeout=60):
            raise SystemExit(str(ec.explain(ec.resources[0])))
        for guid in ec.resources:
            print(ec.trace(guid, "stdout"), end="")


if __name__ == "__main__":
    begin() if sys.argv[1:] == ["begin"] else main()
