"""A chain of commands survives the death of its controller: python crash_and_reconnect.py."""

import os
import signal
import subprocess
import sys

from fedmon.experiment import ExperimentController

STEPS = ["sleep 1; echo first", "echo second", "echo third"]


def begin() -> None:
    """Start the first of three commands, print the folder of the run, and die as if the machine had lost power."""
    ec = ExperimentController("crash")
    last: list[int] = []
    for step in STEPS:
        last = [ec.register_resource("local::Process", command=["sh", "-c", step], after=last)]
    ec.deploy()
    ec.wait_started(ec.resources[0])
    print(ec.run_dir, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Let another process begin the run and die, resume the run, and print the output of the commands."""
    died = subprocess.run([sys.executable, __file__, "begin"], capture_output=True, text=True, check=False)
    with ExperimentController.reconnect(died.stdout.strip()) as ec:
        if not ec.wait_finished(ec.resources, timeout=60):
            raise SystemExit(str(ec.explain(ec.resources[0])))
        for guid in ec.resources:
            print(ec.trace(guid, "stdout"), end="")


if __name__ == "__main__":
    begin() if sys.argv[1:] == ["begin"] else main()
