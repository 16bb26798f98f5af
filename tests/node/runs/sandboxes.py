"""A machine's worth of things that a plan must not reach, and sandboxes to try it from."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import fedmon
from fedmon.common.wire.runs import Level
from fedmon.node.runs.folder import GivenDataset, Interpreter, JobOrder, Limits
from fedmon.node.runs.sandbox import bubblewrap, process
from fedmon.node.runs.sandbox.interpreter import look_at
from tests.support.requirements import require

NOBODY = 65534
PROBES = Path(__file__).with_name("probes")
LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
LIMITS = Limits(cpu_s=30, wall_s=60, memory_bytes=192 * 2**20, processes=24, output_bytes=65_536, tmp_bytes=8 * 2**20)
_IPC_CREAT, _IPC_PRIVATE_KEY, _IPC_RMID = 0o1000, 0x66656400, 0
_CANARY = "canary-of-the-launcher"


@functools.cache
def python_for(user: int) -> str:
    """Return a Python that a user can start and that finds what fedmon needs."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        words = [python, "-c", "import msgspec"]
        with contextlib.suppress(OSError):
            if (
                subprocess.run(
                    words, env=launcher_environment(), capture_output=True, check=False, **_as(user)
                ).returncode
                == 0
            ):
                return python
    require(present=False, reason=f"user {user} can start no Python here that has msgspec")
    raise AssertionError


@functools.cache
def interpreter_for(user: int) -> Interpreter:
    """Return what a user's Python needs, with the packages of the tests' own."""
    found = look_at(Path(python_for(user)))
    packages = sysconfig.get_paths()["purelib"]
    if packages in found.path:
        return found
    return msgspec.structs.replace(found, needs=[*found.needs, packages], path=[*found.path, packages])


class Machine:
    """A node's folder, datasets, sockets and a process, with a sandbox beside them; for one user."""

    def __init__(self, folder: Path, user: int | None = None) -> None:
        self.user = os.geteuid() if user is None else user
        self.folder = folder
        self.node, self.job, self.runtime = folder / "node", folder / "node/runs/job", folder / "node/runs/runtime"
        self.given, self.other = folder / "given", folder / "other.csv"
        self.secret = self.node / "key"
        self.job.mkdir(parents=True)
        self.given.mkdir()
        for path, text in (
            (self.secret, "secret"),
            (self.other, "other"),
            (self.job / "events.jsonl", "{}"),
            (self.given / "data.csv", "a,b\n1,2\n"),
        ):
            path.write_text(text)
            path.chmod(0o600)
        (self.given / "link").symlink_to(self.secret)
        self.lay(PROBES)
        self.unix = folder / "socket"
        self.facts: dict[str, Any] = {}

    def lay(self, program: Path) -> None:
        """Put a program, or the probes, where plans are run from."""
        main = self.runtime / process.MAIN
        shutil.rmtree(self.runtime, ignore_errors=True)
        main.parent.mkdir(parents=True)
        if program == PROBES:
            shutil.copytree(program, self.runtime / "tests/node/runs/probes")
            program /= "main.py"
        shutil.copy(program, main)
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, self.user, -1, follow_symlinks=False)

    def order(self, level: Level, **changes: Any) -> JobOrder:
        """Return an order to run what was laid there."""
        given = {
            "job_id": "probe",
            "node_id": "node",
            "folder": str(self.job),
            "name": "probe",
            "interpreter": interpreter_for(self.user),
            "runtime": str(self.runtime),
            "limits": LIMITS,
            "level": level,
            "trace_bytes": 65_536,
            "dataset": GivenDataset(
                dataset_id="d", name="given", data_type="folder", path=str(self.given), tags=[], shape=None
            ),
        }
        return JobOrder(**{**given, **changes})

    def run(self, order: JobOrder, question: Any) -> subprocess.CompletedProcess[str]:
        """Run a job confined, started by a process that has a secret in its environment.

        A user other than root has a capability, as a node that may read counters.
        """
        caps = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        other = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *caps]
        asked = {"order": msgspec.to_builtins(order), "question": question}
        return subprocess.run(
            [*(other if self.user != os.geteuid() else []), python_for(self.user), "-B", str(LAUNCHER)],
            input=json.dumps(asked),
            env={**launcher_environment(), "FEDMON_TEST_CANARY": _CANARY},
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            timeout=50,
            cwd="/",
        )

    def probed(self, level: Level | None) -> tuple[dict[str, str], str]:
        """Return what each probe could do at a level, or with null beside the sandbox; and what they complain of."""
        order = self.order(level or "limits")
        inside = str(self.given) if level is None else bubblewrap.data_path(order)
        facts = {
            **self.facts,
            "data": f"{inside}/data.csv",
            "data_folder": inside,
            "first": "self" if level is None else "1",
        }
        question = {"probes": [], "facts": facts}
        if level is not None:
            ended = self.run(order, question)
            return json.loads(ended.stdout or "{}"), ended.stderr
        reading, writing = os.pipe()
        os.write(writing, json.dumps(question).encode())
        os.close(writing)
        script = (
            "import os, runpy, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(os.open('/', os.O_RDONLY), 20);"
            "runpy.run_path(sys.argv[2], run_name='__main__')"
        )
        done = subprocess.run(
            [sys.executable, "-B", "-c", script, str(reading), str(self.runtime / process.MAIN)],
            pass_fds=[reading],
            env={"FEDMON_TEST_CANARY": _CANARY, "PATH": "/usr/bin:/bin", "TMPDIR": str(self.job)},
            capture_output=True,
            check=False,
            timeout=50,
        )
        os.close(reading)
        return json.loads(done.stdout or "{}"), done.stderr.decode(errors="replace")


@contextlib.contextmanager
def machine(user: int | None = None) -> Iterator[Machine]:
    """Have such a machine, with somebody who listens and a process to attack."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmon-probes-"))
        made = Machine(Path(folder).resolve(), user)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        path, name, datagrams = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3))
        datagrams.close()
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        path.bind(str(made.unix))
        name.bind(f"\0fedmon-probe-{os.getpid()}")
        datagrams.bind(f"\0fedmon-probe-datagrams-{os.getpid()}")
        made.unix.chmod(0o777)
        for each in (path, name):
            each.listen(100)
        victim = stack.enter_context(
            subprocess.Popen(["/bin/sleep", "100"], executable="/bin/sleep", process_group=0, **_as(made.user))
        )
        stack.callback(victim.kill)
        segment = libc.shmget(_IPC_PRIVATE_KEY + os.getpid() % 256, 4096, _IPC_CREAT | 0o666)
        stack.callback(libc.shmctl, segment, _IPC_RMID, None)
        queue = f"fedmon-probe-{os.getpid()}"
        opened = libc.mq_open(f"/{queue}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
        assert opened >= 0, os.strerror(ctypes.get_errno())
        stack.callback(os.close, opened)
        stack.callback(libc.mq_unlink, f"/{queue}".encode())
        made.facts = {
            "tcp_port": tcp.getsockname()[1],
            "udp_port": udp.getsockname()[1],
            "unix_path": str(made.unix),
            "unix_name": f"fedmon-probe-{os.getpid()}",
            "datagram_name": f"fedmon-probe-datagrams-{os.getpid()}",
            "victim": victim.pid,
            "marker": "sleep",
            "canary": _CANARY,
            "secret": str(made.secret),
            "node": str(made.node),
            "job": str(made.job),
            "other": str(made.other),
            "shm_device": Path("/dev/shm").stat().st_dev,
            "shm_key": _IPC_PRIVATE_KEY + os.getpid() % 256,
            "mq_name": queue,
            "processes": LIMITS.processes,
            "memory_bytes": LIMITS.memory_bytes,
            "tmp_bytes": LIMITS.tmp_bytes,
        }
        yield made


def launcher_environment() -> dict[str, str]:
    """Return the environment in which another Python finds fedmon and its packages."""
    root = str(Path(fedmon.__file__).resolve().parent.parent)
    return {"PYTHONPATH": os.pathsep.join([root, *(each for each in sys.path if each.endswith("site-packages"))])}


def _as(user: int) -> dict[str, Any]:
    return {} if user == os.geteuid() else {"user": user, "group": user, "extra_groups": []}
