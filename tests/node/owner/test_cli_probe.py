"""`fedmon node probe` says what is measured, how, and why not, with and without a node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedmon.common.metrics.table import METRICS
from tests.node.owner.owner_desks import made_folder
from tests.node.owner.owner_shell import Ran, node
from tests.support.machine_tree import machine_tree
from tests.support.node_process import plain_environment
from tests.support.requirements import require
from tests.support.shell_here import document, fedmon_here


def probe(home: Path, *words: str) -> Ran:
    """Probe without a node: the user's data folder is an empty one."""
    return fedmon_here("node", "probe", *words, environ=plain_environment(HOME=str(home), XDG_DATA_HOME=str(home)))


def metrics_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {metric["name"]: metric for group in found["groups"] for metric in group["metrics"]}


def test_this_machine_is_probed_without_any_node(tmp_path: Path) -> None:
    found = document(probe(tmp_path, "--json"))

    metrics = metrics_of(found)
    every = {group["name"]: group["every"] for group in found["groups"]}
    assert (found["simulated"], found["settings"], found["roots"]["proc"]) == (False, None, "/proc")
    assert metrics["host_load1"] == {
        "name": "host_load1", "source": "/proc/loadavg", "series": 1, "reason": None, "missing": {},
    }  # fmt: skip
    assert metrics["perf_events_total"]["reason"] == "unsupported: switched off in the settings, [perf] enabled"
    assert (every["cpu"], every["filesystem"], every["hardware"]) == ("each sample", "10 s", "60 s")
    assert found["hardware"]["threads"] > 0
    assert metrics.keys() <= METRICS.keys()
    assert all(metric["reason"] is None or ": " in metric["reason"] for metric in metrics.values())


def test_where_proc_shows_processes_alone_file_systems_are_measured() -> None:
    require(shutil.which("unshare"), "unshare is not on PATH")
    other = 'umount -l /proc && mount -t proc -o subset=pid proc /proc && exec "$@"'
    words = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "sh", "-c", other, "sh"]
    require(subprocess.run([*words, "true"], capture_output=True).returncode == 0, "no other /proc can be mounted here")

    probe = [*words, sys.executable, "-m", "fedmon", "node", "probe", "--json"]
    ran = subprocess.run(probe, env=plain_environment(), capture_output=True, text=True, check=True)

    assert metrics_of(json.loads(ran.stdout))["host_filesystem_size_bytes"]["reason"] is None


def test_a_tree_that_stands_in_is_called_simulated_and_fits_the_screen(tmp_path: Path) -> None:
    roots = machine_tree(tmp_path / "m")
    (roots.proc / "vmstat").unlink()
    where = ("--proc", str(roots.proc), "--sys", str(roots.sys), "--cgroup", str(roots.cgroup))

    screen = probe(tmp_path, *where)
    found = document(probe(tmp_path, *where, "--json"))

    lines = screen.stdout.splitlines()
    metrics = metrics_of(found)
    broken = 'host_temperature_celsius{chip="nct6775",sensor="temp2"}'
    assert screen.returncode == 0, screen.stderr
    assert lines[0] == "SIMULATED: read from trees of files, not from this machine."
    assert [line for line in lines if len(line) > 80 and str(tmp_path) not in line] == []
    assert "temperature: 2 of 2 metrics, every 10 s" in lines
    assert any("host_temperature_celsius (6)" in line for line in lines)
    assert "paging: 0 of 5 metrics, every 10 s" in lines
    told = {" ".join(line.split()) for line in lines[lines.index("Machine") :]}
    assert told >= {"memory 62.5 GiB", "disks device nvme0n1, size 954 GiB", "device sda, size 932 GiB", "gpus none"}
    assert "unknown network.ib0.speed_bytes_per_second: unsupported:" in told
    assert (found["simulated"], found["hardware"]["sockets"]) == (True, 2)
    assert metrics["host_oom_kills_total"]["reason"] == f"not found: {roots.proc / 'vmstat'}"
    assert metrics["host_temperature_celsius"]["series"] == 6
    assert metrics["host_temperature_celsius"]["missing"].keys() == {broken}
    assert metrics["infiniband_receive_bytes_total"]["series"] == 2
    assert metrics["gpu_power_watts"]["reason"].startswith("unsupported: ")
    assert metrics["host_filesystem_size_bytes"]["reason"].startswith("unsupported: a simulated tree")


def test_the_settings_of_a_node_hold_and_it_need_not_run(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    roots = machine_tree(tmp_path / "m")
    file = folder / "node.toml"
    file.write_text(
        f'{file.read_text()}\n[metrics]\nper_core = true\nproc_root = "{roots.proc}"\nsys_root = "{roots.sys}"\n'
    )

    found = document(node(folder, "probe", "--json", environ={"FEDMON_PERF_ENABLED": "true"}))

    assert metrics_of(found)["perf_events_total"]["reason"] == ("unsupported: a simulated tree has no events")
    assert found["hardware"]["gpus"] == []
    assert found["settings"] == str(file)
    assert found["simulated"]
    assert metrics_of(found)["host_cpu_core_busy_ratio"]["reason"] is None
    assert metrics_of(found)["host_cpu_core_seconds_total"]["series"] == 4 * 8


def test_a_folder_that_is_no_node_is_refused_by_name(tmp_path: Path) -> None:
    ran = node(tmp_path / "nothing", "probe")

    assert ran.returncode == 3
    assert str(tmp_path / "nothing") in ran.stderr
