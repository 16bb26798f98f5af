"""A real OAR of the tests alone, in namespaces of its own.

OAR's server listens on all addresses, on fixed ports, and reads its settings from /etc. So everything runs in a
network, a mount and a process namespace: the loopback device is another one, /etc and /var hold copies, and when the
first process ends, all end. What OAR leaves outside, its cgroups and links under /dev, is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.batch.daemons import launch, remove_cgroups
from tests.support.requirements import require
from tests.support.waiting import wait_until

USER = "alice"
CGROUPS = Path("/sys/fs/cgroup")
POSTGRES = Path("/usr/lib/postgresql/15/bin")
PROGRAMS = ("oarsub", "oarstat", "oardel", "oar-server", "oar-database", "unshare", "nsenter", "sshd", "ip")
LINKS = (Path("/dev/oar_cgroups_links"), Path("/dev/cpuset"))
OBSOLETE_SSHD = re.compile(r"(?m)^(Protocol|UsePrivilegeSeparation|KeepAlive) .*\n")


class Oar:
    """OAR with one host of two cores; jobs run as the user `alice`, who exists in there only."""

    def __init__(self) -> None:
        # At the end of a job OAR removes all that its user owns below /tmp and /var/tmp.
        self.folder = Path(tempfile.mkdtemp(prefix="fedmon-oar-", dir="/srv"))
        self.folder.chmod(0o755)
        self.work = self.folder / "work"
        self.work.mkdir()
        self.work.chmod(0o1777)
        self._init: subprocess.Popen[bytes] | None = None
        self._links_before = [link for link in LINKS if link.is_symlink() or link.exists()]
        self._cgroups_before = {path for path in CGROUPS.glob("*/oar") if path.is_dir()}

    def start(self) -> None:
        """Start everything and return when jobs are taken."""
        with (self.folder / "init.out").open("wb") as output:
            argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            # The shell is process 1 in there: it must collect the orphans that end.
            argv += ["bash", "-c", "ip link set lo up; sleep infinity & wait $!"]
            self._init = launch(argv, output=output)
        wait_until(self._first_process, what="the namespaces")
        wait_until(lambda: b"lo" in self._try("ip", "-o", "link", "show", "up").stdout, what="the loopback device")
        self._lay_out()
        self._start_database()
        self._must(
            "oar-database", "--create", "--db-admin-user", "postgres", "--db-admin-pass", "x", "--db-host", "127.0.0.1"
        )
        self._start_node()
        for words in (["oarproperty", "-a", "cpu", "-a", "core"], ["oarproperty", "-a", "host", "-c"]):
            self._must(*words)
        for core in ("0", "1"):
            properties = [f"-p{name}" for name in ("host=localhost", "cpu=0", f"core={core}", f"cpuset={core}")]
            self._must("oarnodesetting", "-a", "-h", "localhost", *properties)
        self._must("oar-server", "start")

    def stop(self) -> None:
        """End everything in the namespaces and remove what was left outside."""
        with contextlib.ExitStack() as last_first:
            last_first.callback(shutil.rmtree, self.folder, ignore_errors=True)
            made = [path for path in CGROUPS.glob("*/oar") if path.is_dir() and path not in self._cgroups_before]
            last_first.callback(remove_cgroups, made)
            if self._init is not None:
                # unshare passes no signal on, but takes its child with it when it dies.
                last_first.callback(self._init.wait, 60)
                last_first.callback(self._init.kill)
            for link in LINKS:
                if link not in self._links_before and link.is_symlink():
                    last_first.callback(link.unlink)
                elif link not in self._links_before and link.is_dir():
                    last_first.callback(shutil.rmtree, link, ignore_errors=True)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command in there as the user of the jobs."""
        login = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--reset-env"]
        return subprocess.run(
            [*self._enter(), *login, *argv],
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def submit(self, command: str, *options: str) -> str:
        """Submit a command line as a job of two cores and return its id."""
        submitted = self.run("sh", "-c", 'cd "$0" && exec oarsub "$@"', str(self.work), *options, command)
        found = re.search(r"OAR_JOB_ID=(\d+)", submitted.stdout)
        assert found, submitted.stdout + submitted.stderr + self.log()
        return found.group(1)

    def state(self, job_id: str) -> str:
        """Return the state of a job as oarstat tells it."""
        return self.run("oarstat", "-s", "-j", job_id).stdout.partition(":")[2].strip()

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 60.0) -> str:
        """Wait until a job is in one of ``states`` and return which."""
        return wait_until(
            lambda: state if (state := self.state(job_id)) in states else "",
            timeout_s=timeout_s,
            what=f"job {job_id} in {states}",
        )

    def log(self) -> str:
        """Return the end of OAR's log, for the message of a failed test."""
        log = self.folder / "var-log" / "oar.log"
        return log.read_text()[-3000:] if log.exists() else ""

    def _first_process(self) -> int:
        assert self._init is not None
        assert self._init.poll() is None, (self.folder / "init.out").read_text()
        # setpriv became unshare, whose child is process 1 of the namespace.
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self._first_process()}", "--net", "--mount", "--pid"]

    def _try(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*self._enter(), *argv], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)

    def _must(self, *argv: str) -> None:
        ran = self._try(*argv)
        assert ran.returncode == 0, (argv, ran.stdout.decode()[-2000:], ran.stderr.decode()[-2000:], self.log())

    def _lay_out(self) -> None:
        """Put copies of what OAR reads and writes over the originals, in there only."""
        for place in ("/etc/oar", "/var/lib/oar"):
            copy = self.folder / place.strip("/").replace("/", "-")
            self._must("cp", "-a", place, str(copy))
            self._must("mount", "--bind", str(copy), place)
        for place in ("/var/log", "/run"):
            fresh = self.folder / place.strip("/").replace("/", "-")
            fresh.mkdir(mode=0o755)
            self._must("mount", "--bind", str(fresh), place)
        log = self.folder / "var-log" / "oar.log"
        log.touch()
        shutil.chown(log, "oar", "oar")
        conf = self.folder / "etc-oar" / "oar.conf"
        conf.write_text(re.sub(r'(?m)^(DB_BASE_PASSWD(_RO)?)=""', r'\1="oar"', conf.read_text()))
        sshd = self.folder / "etc-oar" / "sshd_config"
        sshd.write_text(OBSOLETE_SSHD.sub("", sshd.read_text()) + "ListenAddress 127.0.0.1\n")
        self._accounts()
        self._open_interpreter()

    def _open_interpreter(self) -> None:
        """Let the user of the jobs reach the interpreter where it lies in a home that is closed to others."""
        prefix = Path(sys.base_prefix)
        closed = [parent for parent in reversed(prefix.parents) if not parent.stat().st_mode & 0o001]
        if not closed:
            return
        kept = self.folder / "interpreter"
        kept.mkdir()
        self._must("mount", "--bind", str(prefix), str(kept))
        self._must("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(closed[0]))
        self._must("mkdir", "-p", str(prefix))
        self._must("mount", "--bind", str(kept), str(prefix))

    def _accounts(self) -> None:
        """Add the user of the jobs, and let sshd take OAR's own account."""
        added = {
            "passwd": f"{USER}:x:4242:4242::{self.work}:/bin/bash\n",
            "group": f"{USER}:x:4242:\n",
            "shadow": f"{USER}:*:19000:0:99999:7:::\n",
        }
        for name, line in added.items():
            copy = self.folder / name
            shutil.copy2(f"/etc/{name}", copy)
            text = re.sub(r"(?m)^oar:!+:", "oar:*:", copy.read_text())
            copy.write_text(text.rstrip("\n") + "\n" + line)
            self._must("mount", "--bind", str(copy), f"/etc/{name}")

    def _start_database(self) -> None:
        cluster = self.folder / "database"
        cluster.mkdir(mode=0o700)
        shutil.chown(cluster, "postgres", "postgres")
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        self._must(*as_postgres, str(POSTGRES / "initdb"), "--auth=trust", "--no-sync", "-D", str(cluster))
        words = ["-D", str(cluster), "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={cluster}"]
        self._daemon("postgres", [*as_postgres, str(POSTGRES / "postgres"), *words, "-c", "fsync=off"])
        ready = [str(POSTGRES / "pg_isready"), "--quiet", "--host=127.0.0.1"]
        wait_until(lambda: self._try(*ready).returncode == 0, what="PostgreSQL")

    def _start_node(self) -> None:
        (self.folder / "run" / "sshd").mkdir(mode=0o755)
        self._daemon("sshd", ["/usr/sbin/sshd", "-D", "-f", "/etc/oar/sshd_config"])
        known = ["sh", "-c", "ssh-keyscan -p 6667 localhost 127.0.0.1 > /var/lib/oar/.ssh/known_hosts 2>/dev/null"]
        hosts = self.folder / "var-lib-oar" / ".ssh" / "known_hosts"
        wait_until(lambda: self._try(*known).returncode == 0 and hosts.read_text(), what="OAR's sshd")
        shutil.chown(hosts, "oar", "oar")

    def _daemon(self, name: str, argv: Sequence[str]) -> None:
        """Start a daemon in there; it ends with the namespaces."""
        with (self.folder / f"{name}.out").open("wb") as output:
            launch([*self._enter(), *argv], output=output)


def require_oar() -> None:
    """Skip aloud when OAR cannot be started here."""
    require(os.geteuid() == 0, "OAR's daemons are started as root")
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not (POSTGRES / "postgres").exists():
        missing.append("postgresql 15")
    require(not missing, f"OAR is missing here ({', '.join(missing)})")
