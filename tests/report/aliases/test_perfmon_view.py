"""The view in perfmon's words, over recordings that real collectors made."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import Reading
from fedmon.node.collectors.energy import EnergyMeter, energy_collectors
from fedmon.node.collectors.host import host_collectors
from fedmon.node.collectors.infiniband import infiniband_collectors
from fedmon.node.collectors.nvml import NvmlSession, queries
from fedmon.node.collectors.nvml.library import Nvml
from fedmon.node.collectors.nvml.reader import LaneReader
from fedmon.report.source import Source
from fedmon.report.views import perfmon
from fedmon.report.views.perfmon import CPU, gpu_columns
from tests.node.jobs_real import Program, Watch
from tests.node.test_perf_replay import Replay, counting, reading_with
from tests.report.aliases.recorded import T0, RecordedHost, Values, frames, read_all
from tests.support.energy_tree import EnergyTree
from tests.support.machine_tree import machine_tree, port_files, write_tree
from tests.support.nvml import FakeGpu, FakeNvml

MIB = 1024**2
CLOCK = "perf_counted_seconds_total"


def documents(path: Path | list[Path], folder: Path) -> dict[str, Any]:
    with Source(path) as source:
        written = perfmon.write_json(source, folder)
    assert sorted(written) == sorted(folder.iterdir())
    return {file.stem: json.loads(file.read_text(), parse_constant=pytest.fail) for file in written}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A recording of a job that burns, holds memory, writes and forks, on this machine, and what it really did."""
    host = RecordedHost("node-a", labels={"system": "here", "env": "test"}, tool={"interval_s": 30.0})
    with Program() as program, Watch() as watch:
        watch.add(program.pid)
        machine = host_collectors()
        host.tick(0.0, read_all(machine, 0.0), watch.tick(mono=0.0).values)
        program.tell("burn 0.2")
        program.tell("allocate 40000000")
        children = program.pids("chain 3")
        user, system = program.used_s()
        pids = [program.pid, *children]
        pages = [list(map(int, Path(f"/proc/{pid}/statm").read_text().split())) for pid in pids]
        watch.end()
        values = watch.tick(mono=1.0).values
        host.tick(1.0, read_all(machine, 1.0), values)
    page = os.sysconf("SC_PAGESIZE")
    truth = {
        "cpu": user + system,
        "vms": page * sum(each[0] for each in pages),
        "shared": page * sum(each[2] for each in pages),
        "rss": page * sum(each[1] for each in pages),
        "threads": len(pids),
    }
    for collector in machine:
        getattr(collector, "close", lambda: None)()
    return host.write(tmp_path_factory.mktemp("real") / "r.fmr"), truth


def test_a_real_job_has_perfmons_keys_in_perfmons_units(real: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    path, truth = real
    document = documents(path, tmp_path / "metrics")["cpu_metrics"]

    assert (document["host_names"], document["sampling_frequency"]) == (["node-a"], 30)
    assert document["labels"] == {"job_id": "7", "system": "here", "env": "test"}
    host = document["node-a"]
    assert host["time_stamps"] == [int(T0), int(T0) + 1]
    assert host["timestamps"] == [T0, T0 + 1]
    assert host["cpu_time"][-1] == pytest.approx(truth["cpu"], abs=0.1)
    assert host["cpu_time"][-1] == pytest.approx(sum(host["cpu_times"][one][-1] for one in ("user", "system")))
    assert host["cpu_percent"][-1] == pytest.approx(100 * (host["cpu_time"][1] - host["cpu_time"][0]), abs=1)
    assert host["cpu_percent_sys"][0] is None
    assert 0 <= host["cpu_percent_sys"][1] <= 100
    memory = host["memory_info"]
    assert memory["vms"][-1] == truth["vms"]
    assert memory["shared"][-1] == pytest.approx(truth["shared"], abs=MIB)
    assert memory["rss"][-1] == pytest.approx(truth["rss"], abs=MIB)
    assert memory["rss"][-1] - memory["rss"][0] > 35e6
    assert host["memory_full_info"]["uss"][-1] <= host["memory_full_info"]["pss"][-1] <= memory["rss"][-1] + MIB
    assert host["memory_percent"][-1] == pytest.approx(
        100 * memory["rss"][-1] / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")), rel=0.01
    )
    assert host["num_threads"] == [1, truth["threads"]]
    assert host["num_fds"][0] > 0
    assert set(host["io_counters"]) == {"read_count", "write_count", "read_bytes", "write_bytes"}
    assert host["io_counters"]["write_count"][-1] > host["io_counters"]["write_count"][0]
    assert set(host["net_io_counters"]) == {"bytes_sent", "bytes_recv", "packets_sent", "packets_recv"}
    assert all(isinstance(value, int) for value in host["net_io_counters"]["bytes_sent"])


def test_the_table_says_the_same_as_the_file_and_neither_has_what_was_not_measured(
    real: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    files = documents(real[0], tmp_path)
    host = files["cpu_metrics"]["node-a"]
    frame = frames(real[0])["cpu_metrics"]

    assert list(frame.columns[:6]) == ["Host", "Timestamps", "Time", "Job", "System", "Environment"]
    assert frame["Timestamps"].tolist() == host["time_stamps"]
    assert [moment.timestamp() for moment in frame["Time"]] == host["timestamps"]
    for column in CPU:
        if column.header in frame:
            inside = host
            for key in column.path:
                inside = inside[key]
            shown = [None if math.isnan(value) else value for value in frame[column.header]]
            assert shown == [None if one is None else pytest.approx(one, abs=1e-6) for one in inside], column.header
    assert set(files) <= {"meta_data", "cpu_metrics"}
    assert "memory_bw" not in host
    assert "ib_io_counters" not in host or list(Path("/sys/class/infiniband").glob("*"))
    assert not frame.isna().all().any()


def devices(tmp_path: Path) -> Path:
    """Two sockets with energy, two InfiniBand adapters and a job of which one tick was missed."""
    roots = machine_tree(tmp_path / "machine")
    tree = EnergyTree(tmp_path / "energy")
    for number in (0, 1):
        tree.zone(f"intel-rapl:{number}", f"package-{number}", 1000, range_uj=5_000_000)
        tree.zone(f"intel-rapl:{number}:0", "core", 500)
        tree.zone(f"intel-rapl:{number}:1", "dram", 100)
    tree.zone("intel-rapl:2", "psys", 10)
    energy = energy_collectors(EnergyMeter(tree.roots, EnergySettings()))
    ports = infiniband_collectors(sys=roots.sys)
    host = RecordedHost("node-a")
    job: Values = {"job_threads": 3}
    host.tick(0.0, read_all([*ports, *energy], 0.0), job)
    tree.shows("intel-rapl:0", 3_001_000)
    tree.shows("intel-rapl:0:1", 350)
    write_tree(roots.sys, {**port_files(), "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "1250\n"})
    host.tick(1.0, read_all([*ports, *energy], 1.0), {"job_threads": None})
    tree.shows("intel-rapl:0", 1_000)
    host.tick(2.0, read_all([*ports, *energy], 2.0), job)
    return host.write(tmp_path / "devices.fmr")


def test_energy_and_infiniband_are_in_microjoules_bytes_and_packets(tmp_path: Path) -> None:
    host = documents(devices(tmp_path), tmp_path / "json")["cpu_metrics"]["node-a"]

    rapl = host["rapl_powercap"]
    assert set(rapl) == {"package-0", "package-1", "core-0", "core-1", "dram-0", "dram-1", "psys"}
    assert [value - rapl["package-0"][0] for value in rapl["package-0"]] == [0, 3_000_000, 5_000_000]
    assert rapl["dram-0"][1] - rapl["dram-0"][0] == 250
    ports = host["ib_io_counters"]
    assert ports["port_xmit_data"][:2] == [2 * 4 * 250, 4 * 250 + 4 * 1250]
    assert ports["port_rcv_data"][0] == 2 * 4 * 2**40
    assert ports["port_xmit_packets"][0] == 2 * 80
    assert ports["port_rcv_packets"][0] == 2 * 70
    assert host["num_threads"] == [3, None, 3]


def gpu_values() -> Values:
    first, second = FakeGpu("GPU-0"), FakeGpu("GPU-1")
    fake = FakeNvml(first, second)
    fake.refuse("nvmlDeviceGetFanSpeed", 3, when=lambda arguments: arguments[0] is first)
    asked = (*queries.FAST, *queries.MEDIUM, *queries.PCIE, *queries.SLOW)
    session = NvmlSession(Nvml(fake), retry_s=0.0, monotonic=lambda: 0.0)
    return LaneReader(session, asked, with_processes=True).read().values


def test_each_gpu_is_a_host_of_its_own_in_perfmons_units(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    values = gpu_values()
    job = {'job_gpu_processes{gpu="1"}': 1.0, 'job_gpu_memory_bytes{gpu="1"}': 5e9, 'job_gpu_sm_ratio{gpu="1"}': 0.25}
    host.tick(0.0, values, job)
    host.tick(1.0, dict.fromkeys(values), job)
    path = host.write(tmp_path / "gpu.fmr")

    document = documents(path, tmp_path / "json")["nv_gpu_metrics"]
    frame = frames(path)["nv_gpu_metrics"]

    assert document["host_names"] == ["gpu-0.node-a", "gpu-1.node-a"]
    gpu = document["gpu-1.node-a"]
    assert {key: value for key, value in gpu.items() if not key.startswith(("time", "job_"))} == {
        "clock_info": {"graphics": [1000, None], "sm": [1001, None], "memory": [1002, None]},
        "ecc_errors": {"sp": [10, None], "dp": [11, None]},
        "memory_used": {"gpu_memory": [3 << 30, None], "bar1_memory": [1 << 20, None]},
        "utilization_rates": {"gpu": [37, None], "memory": [12, None]},
        "encoder_util": [5, None],
        "decoder_util": [6, None],
        "power_usage": [123_456, None],
        "violation": [0 + 1_500_000_000, None],
        "temperature": [41, None],
        "fan_speed": [30, None],
        "num_procs": [2, None],
        "pci_thgpt": {"send": [500, None], "recv": [501, None]},
    }
    assert (gpu["job_num_procs"], gpu["job_memory_used"], gpu["job_utilization"]) == ([1, 1], [5 * 10**9] * 2, [25, 25])
    assert "fan_speed" not in document["gpu-0.node-a"]
    assert "job_num_procs" not in document["gpu-0.node-a"]
    assert frame["Host"].tolist() == ["gpu-0.node-a"] * 2 + ["gpu-1.node-a"] * 2
    assert {column.header for column in gpu_columns("0")} <= set(frame)
    assert frame["Fan speed [%]"].isna().tolist() == [True, True, False, True]


def series_of(events: Mapping[str, Mapping[str, float]], seconds: float, **rest: float) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        f'perf_events_total{{group="{group}",event="{event}"}}': value
        for group, counts in events.items()
        for event, value in counts.items()
    }
    return {**found, "perf_counted_seconds_total": seconds, **rest}


def test_events_are_counts_of_an_interval_by_group_and_derived_values_begin_with_derv(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    dp = 'perf_flops_per_second{precision="double"}'
    for mono, turn, seconds in ((0.0, 1, 2.0), (1.0, 3, 4.0), (2.0, 3, 4.0)):
        events = {
            "cycles": {"cycles": 100.0 * turn, "instructions": 50.0 * turn},
            "software": {"context-switches": 7.0 * turn, "cpu-migrations": 1.0 * turn},
            "l2cache": {"inst_retired.any_p": 10.0 * turn},
            "l3cache": {"inst_retired.any_p": 11.0 * turn},
        }
        job = series_of(events, seconds, **{dp: 4e9, "perf_l2_bandwidth_bytes_per_second": 5e6})
        reads = {"memory_server": {"unc_m_cas_count.rd": 1e6 * turn, "unc_m_cas_count.wr": 9e9 * turn}}
        host.tick(mono, series_of(reads, seconds), {**job, "job_threads": 1})
    path = host.write(tmp_path / "perf.fmr")

    files = documents(path, tmp_path / "json")
    frame = frames(path)["perf_metrics"]

    found = files["perf_metrics"]["node-a"]
    assert list(found)[2:] == ["hardware_events", "software_events", "L2", "L2cache", "L3cache", "FLOPS_DP"]
    # Between the second and the third sample no interval of perf ended: nothing is known, and nothing is repeated.
    assert found["hardware_events"] == {"cycles": [None, 200, None], "instructions": [None, 100, None]}
    assert found["software_events"]["context-switches"] == [None, 14, None]
    assert found["FLOPS_DP"] == {"derv_flops_dp": [4000, 4000, 4000]}
    assert found["L2"] == {"derv_l2_bandwidth": [5, 5, 5]}
    assert {"cycles", "context-switches", "inst_retired.any_p (L2cache)", "inst_retired.any_p (L3cache)"} <= set(frame)
    assert files["cpu_metrics"]["node-a"]["memory_bw"] == [None, 64 * 2e6 / 2.0, None]
    mib = frames(path)["cpu_metrics"]["Memory (read) bandwidth [MiB/s]"].tolist()
    assert mib[1] == pytest.approx(64e6 / MIB)


def is_later(reading: Reading, read: list[Values]) -> bool:
    return (reading.values.get(CLOCK) or 0.0) > ((read[-1][CLOCK] or 0.0) if read else 0.0)


def test_what_a_real_collector_counts_with_perf_is_told_of_the_machine_where_there_is_no_job(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    dp = "flops_dp.fp_arith_inst_retired"
    counts = {
        "cycles": 2000, "instructions": 3000, f"{dp}.scalar_double": 10, f"{dp}.128b_packed_double": 20,
        f"{dp}.256b_packed_double": 30, "memory_server.unc_m_cas_count.rd": 5, "memory_server.unc_m_cas_count.wr": 7,
    }  # fmt: skip
    replay.answers(counts=counts, percent=50.0)
    host, read = RecordedHost("node-a"), list[Values]()
    with counting(replay.source("cycles", "flops_dp", "memory")) as collector:
        for number in range(2):
            read.append(reading_with(collector, lambda one: is_later(one, read)).values)
            host.add(float(number), read[-1])
    intervals = round((float(read[1][CLOCK] or 0) - float(read[0][CLOCK] or 0)) / 0.1)
    path = host.write(tmp_path / "r.fmr")

    files = documents(path, tmp_path / "json")

    found = files["perf_metrics"]["node-a"]
    assert found["hardware_events"]["cycles"] == [None, 2000 * intervals]
    assert found["hardware_events"]["derv_ipc"][1] == 1.5
    assert found["FLOPS_DP"]["fp_arith_inst_retired.128b_packed_double"] == [None, 20 * intervals]
    assert found["FLOPS_DP"]["derv_flops_dp"][1] == pytest.approx(1e-6 * (10 + 2 * 20 + 4 * 30) / 0.1, abs=1e-6)
    assert files["cpu_metrics"]["node-a"]["memory_bw"] == [None, pytest.approx(64 * 5 / 0.1)]


def test_hosts_that_measure_different_things_stay_apart_and_keep_their_own_clocks(tmp_path: Path) -> None:
    first = RecordedHost("node-a", offset_s=2.0)
    second = RecordedHost("node-b")
    idle = RecordedHost("node-c", jobs={"7": {"job_id": "7"}})
    for number in range(5):
        first.tick(float(number), {"host_cpu_busy_ratio": 0.5}, {"job_threads": 10.0 + number})
        second.tick(
            float(number), {'infiniband_receive_bytes_total{device="m",port="1"}': 4.0 * number}, {"job_processes": 1}
        )
    idle.tick(0.0, {"host_cpu_busy_ratio": 0.125})
    paths = [host.write(tmp_path / f"{host.node_id}.fmr") for host in (first, second, idle)]

    frame = frames(paths)["cpu_metrics"]
    document = documents(paths, tmp_path / "json")["cpu_metrics"]

    assert frame["Host"].tolist() == ["node-a"] * 5 + ["node-b"] * 5 + ["node-c"]
    by_host = dict(iter(frame.groupby("Host")))
    assert by_host["node-a"]["Number of threads"].tolist() == [10, 11, 12, 13, 14]
    assert by_host["node-a"]["IB recv data [bytes]"].isna().all()
    assert by_host["node-b"]["IB recv data [bytes]"].tolist() == [0, 4, 8, 12, 16]
    assert by_host["node-b"]["CPU usage of the host [%]"].isna().all()
    assert by_host["node-c"]["CPU usage of the host [%]"].tolist() == [12.5]
    assert document["node-a"]["time_stamps"][0] - document["node-b"]["time_stamps"][0] == 2
    assert set(document["node-b"]) == {"time_stamps", "timestamps", "ib_io_counters"}
    assert len(document["node-c"]["time_stamps"]) == 1


def test_a_job_of_a_node_that_is_always_there_has_the_rows_of_its_own_time(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    for number in range(20):
        host.add(float(number), {"host_cpu_busy_ratio": number / 100})
    for number in (5, 6, 8):
        host.add(float(number), {"job_threads": 2}, stream="job-7")
    for number in (12, 13):
        host.add(float(number), {"job_threads": 4}, stream="job-8_1")
    path = host.write(tmp_path / "r.fmr")

    seven = frames(path, "7")["cpu_metrics"]
    both = frames(path)["cpu_metrics"]
    files = documents(path, tmp_path / "json")

    assert seven["CPU usage of the host [%]"].tolist() == pytest.approx([5, 6, 7, 8])
    assert seven["Number of threads"].tolist()[:2] + seven["Number of threads"].tolist()[3:] == [2, 2, 2]
    assert math.isnan(seven["Number of threads"][2])
    assert both["Job"].tolist() == ["7"] * 4 + ["8_1"] * 2
    assert set(files) == {f"{group}_{job}" for group in ("cpu_metrics", "meta_data") for job in ("7", "8_1")}
    with pytest.raises(NotFoundError, match=r"no job '9'.*7 and 8_1"):
        frames(path, "9")


def test_a_recording_without_a_sample_gives_no_table_and_still_its_description(tmp_path: Path) -> None:
    host = RecordedHost("node-a", hardware={"cpu": {"sockets": 2}}, jobs={"7": {"job_id": "7"}})
    path = host.write(tmp_path / "r.fmr")

    assert frames(path) == {}
    files = documents(path, tmp_path / "json")
    assert list(files) == ["meta_data"]
    assert files["meta_data"]["node-a"]["hardware"] == {"cpu": {"sockets": 2}}
    assert files["meta_data"]["sampling_frequency"] is None


def test_counters_of_interfaces_never_fall_when_one_restarts_goes_or_is_missed(tmp_path: Path) -> None:
    def sent(eth0: float | None, ib0: float | None) -> Values:
        return {
            'host_network_transmit_bytes_total{interface="eth0"}': eth0,
            'host_network_transmit_bytes_total{interface="ib0"}': ib0,
        }

    host = RecordedHost("node-a")
    for number, values in enumerate(
        [sent(100, 1000), sent(150, 1500), sent(20, 1600), sent(30, None), sent(40, 1700), sent(50, None)]
    ):
        host.add(float(number), values)
    document = documents(host.write(tmp_path / "r.fmr"), tmp_path / "json")["cpu_metrics"]

    # eth0 began anew at 20, which adds nothing; ib0 was missed once, so that nobody knows the sum, then it went.
    assert document["node-a"]["net_io_counters"]["bytes_sent"] == [1100, 1650, 1750, None, 1870, 1880]


def test_a_host_called_like_a_key_of_the_file_hides_nothing(tmp_path: Path) -> None:
    paths = []
    for name in ("labels", "b"):
        host = RecordedHost(name)
        host.tick(0.0, {"host_cpu_busy_ratio": 0.5})
        paths.append(host.write(tmp_path / f"{name}.fmr"))

    document = documents(paths, tmp_path / "json")["cpu_metrics"]

    assert document["host_names"] == ["b", "labels~2"]
    assert document["labels~2"]["cpu_percent_sys"] == [50]


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    host = RecordedHost("node-a")
    host.tick(0.0, {"host_cpu_busy_ratio": 0.5})
    path = host.write(tmp_path / "r.fmr")
    folder = tmp_path / "json"
    first = documents(path, folder)
    (folder / "cpu_metrics.json").unlink()
    (folder / "cpu_metrics.json").mkdir()

    with Source([path]) as source, pytest.raises(InvalidInputError, match="cpu_metrics"):
        perfmon.write_json(source, folder)

    assert first["cpu_metrics"]["host_names"] == ["node-a"]
    assert sorted(file.name for file in folder.iterdir()) == ["cpu_metrics.json", "meta_data.json"]
