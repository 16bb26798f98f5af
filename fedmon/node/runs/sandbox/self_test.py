"""What a level is tried with: run inside the sandbox in place of a plan, it says what it could do and should not.

It runs on the interpreter of the plans, without fedmon.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path


def _wrong(level: str, secret: str, outside: int) -> str | None:
    with open("/proc/self/status" if level == "bubblewrap" else os.devnull) as file:
        facts = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    if level == "bubblewrap":
        if facts["CapEff"].strip("0\n") or facts["NoNewPrivs"].strip() != "1" or facts["Seccomp"].strip() != "2":
            return "capabilities, no_new_privs or seccomp are not as they should be"
        if Path(f"/proc/{outside}/stat").exists() and outside > 100:
            return "processes of this machine are visible"
    if level != "limits":
        try:
            with open(secret) as file:
                return f"files of this machine can be read: {file.read()}"
        except OSError:
            pass
    try:
        socket.socket(socket.AF_INET)
        return "an internet socket can be opened"
    except OSError:
        pass
    if set(os.environ) - {"PATH", "LANG", "HOME", "TMPDIR", "FEDMON_JOB_ID", "PWD", "LC_CTYPE"}:
        return f"the environment holds more than it should: {sorted(os.environ)}"
    with Path(os.environ["TMPDIR"], "try").open("w") as file:
        file.write("text")
    return None


with open(3) as question:
    sys.stdout.write(_wrong(**json.load(question)) or "as it should be")
