"""InfiniBand and other RDMA ports, over trees of files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedmon.common.metrics.series import metric_name, split_series
from fedmon.common.metrics.table import METRICS
from fedmon.node.collectors.base import Collector, Lane
from fedmon.node.collectors.infiniband import FULL, infiniband_collectors
from tests.support.energy_tree import at
from tests.support.machine_tree import port_files, write_tree

PORT = "class/infiniband/mlx5_0/ports/1"
HERE = '{device="mlx5_0",port="1"}'


def collectors(root: Path) -> tuple[Collector, Collector]:
    ports, traffic = infiniband_collectors(sys=root)
    ports.probe()
    return traffic, ports


def old_port_files(**counters: int) -> dict[str, str]:
    """Return a port of an old kernel, which has only the counters of 32 bits."""
    files = {name: text for name, text in port_files().items() if "/counters/" not in name}
    return files | {f"{PORT}/counters/{name}": f"{value}\n" for name, value in counters.items()}


def test_data_are_octets_and_packets_are_packets(tmp_path: Path) -> None:
    traffic, _ = collectors(write_tree(tmp_path, port_files()))

    assert traffic.lane is Lane.FAST
    assert traffic.collect(at(0)).values == {
        f"infiniband_receive_bytes_total{HERE}": 4 * 2**40,
        f"infiniband_transmit_bytes_total{HERE}": 1000,
        f"infiniband_receive_packets_total{HERE}": 70,
        f"infiniband_transmit_packets_total{HERE}": 80,
    }
    assert set(traffic.probe().values()) == {None}


def test_every_adapter_and_every_port_is_read(tmp_path: Path) -> None:
    files = port_files() | port_files("mlx5_0", 2) | port_files("hfi1_0", 1) | port_files("mlx5_10", 1)
    traffic, ports = collectors(write_tree(tmp_path, files))

    found = [key for key in traffic.collect(at(0)).values if metric_name(key) == "infiniband_receive_bytes_total"]
    rest = ports.collect(at(0)).values

    assert [tuple(split_series(key)[1].values()) for key in found] == [
        ("hfi1_0", "1"), ("mlx5_0", "1"), ("mlx5_0", "2"), ("mlx5_10", "1"),
    ]  # fmt: skip
    assert len([key for key in rest if metric_name(key) == "infiniband_port_state"]) == 4
    for key in rest:
        name, labels = split_series(key)
        assert tuple(labels) == METRICS[name].labels


def test_state_rate_errors_and_kinds_of_packets_are_read_less_often(tmp_path: Path) -> None:
    _, ports = collectors(write_tree(tmp_path, port_files() | {f"{PORT}/link_layer": "Ethernet\n"}))

    found = ports.collect(at(0)).values

    assert ports.lane is Lane.MEDIUM
    assert found[f"infiniband_port_state{HERE}"] == 4
    assert found[f"infiniband_rate_bytes_per_second{HERE}"] == 12.5e9
    assert found[f"infiniband_unicast_receive_packets_total{HERE}"] == 60
    assert found[f"infiniband_multicast_transmit_packets_total{HERE}"] == 5
    assert found[f"infiniband_symbol_errors_total{HERE}"] == 1
    assert found[f"infiniband_transmit_waits_total{HERE}"] == 5
    labels = 'device="mlx5_0",port="1",link_layer="Ethernet",state="4: ACTIVE",rate="100 Gb/sec (4X EDR)"'
    assert found[f"infiniband_port_info{{{labels}}}"] == 1
    assert "infiniband_link_recoveries_total" not in {metric_name(key) for key in found}
    assert ports.probe()["infiniband_link_recoveries_total"] == "unsupported: no port counts it"
    assert ports.probe()["infiniband_symbol_errors_total"] is None

    (tmp_path / PORT / "rate").unlink()
    write_tree(tmp_path, {f"{PORT}/counters/symbol_error": ""})
    missed = {f"infiniband_rate_bytes_per_second{HERE}", f"infiniband_symbol_errors_total{HERE}"}
    assert {key for key, value in ports.collect(at(20)).values.items() if value is None} == missed


def test_a_port_without_a_link_has_no_traffic_and_its_state_is_the_reason(tmp_path: Path) -> None:
    files = port_files() | port_files("mlx5_0", 2, state="1: DOWN") | {f"{PORT}/../2/rate": "10 Gb/sec (4X SDR)\n"}
    traffic, ports = collectors(write_tree(tmp_path, files))
    down = '{device="mlx5_0",port="2"}'
    reason = "unsupported: port 2 of mlx5_0 has no link, its state is 1: DOWN"

    reading, report = traffic.collect(at(0)), traffic.probe()

    assert reading.values[f"infiniband_receive_bytes_total{HERE}"] == 4 * 2**40
    assert reading.values[f"infiniband_receive_bytes_total{down}"] is None
    assert reading.reasons == {f"{metric}{down}": reason for metric in (
        "infiniband_receive_bytes_total", "infiniband_transmit_bytes_total",
        "infiniband_receive_packets_total", "infiniband_transmit_packets_total",
    )}  # fmt: skip
    assert report["infiniband_receive_bytes_total"] is None
    assert report[f"infiniband_receive_bytes_total{down}"] == reason
    assert ports.collect(at(0)).values[f"infiniband_link_downed_total{down}"] == 2


def test_a_link_that_goes_down_is_noticed_when_the_ports_are_looked_at_again(tmp_path: Path) -> None:
    traffic, ports = collectors(write_tree(tmp_path, port_files()))
    before = traffic.collect(at(0)).values[f"infiniband_receive_bytes_total{HERE}"]
    write_tree(tmp_path, {f"{PORT}/state": "1: DOWN\n"})

    unnoticed = traffic.collect(at(1)).values[f"infiniband_receive_bytes_total{HERE}"]
    state = ports.collect(at(10)).values[f"infiniband_port_state{HERE}"]
    noticed = traffic.collect(at(11)).values[f"infiniband_receive_bytes_total{HERE}"]

    assert (before, unnoticed, state, noticed) == (4 * 2**40, 4 * 2**40, 1, None)
    assert traffic.probe()["infiniband_receive_bytes_total"] == (
        "unsupported: port 1 of mlx5_0 has no link, its state is 1: DOWN"
    )


@pytest.mark.parametrize("place", ["counters_ext/{}_64", "counters/{}_64"])
def test_counters_of_64_bits_are_preferred_wherever_the_kernel_keeps_them(tmp_path: Path, place: str) -> None:
    files = old_port_files(port_rcv_data=5, port_xmit_data=6, port_rcv_packets=7, port_xmit_packets=8)
    for name in ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets"):
        files[f"{PORT}/{place.format(name)}"] = f"{2**50}\n"
    traffic, _ = collectors(write_tree(tmp_path, files))

    found, report = traffic.collect(at(0)).values, traffic.probe()

    assert found[f"infiniband_transmit_bytes_total{HERE}"] == 4 * 2**50
    assert found[f"infiniband_transmit_packets_total{HERE}"] == 2**50
    assert set(report.values()) == {None}


def test_a_counter_of_32_bits_is_named_and_is_none_when_it_is_full(tmp_path: Path) -> None:
    files = old_port_files(port_rcv_data=FULL, port_xmit_data=6, port_rcv_packets=7)
    traffic, _ = collectors(write_tree(tmp_path, files))

    reading, report = traffic.collect(at(0)), traffic.probe()

    assert reading.values == {
        f"infiniband_receive_bytes_total{HERE}": None,
        f"infiniband_transmit_bytes_total{HERE}": 24,
        f"infiniband_receive_packets_total{HERE}": 7,
        f"infiniband_transmit_packets_total{HERE}": None,
    }
    where = tmp_path / PORT / "counters"
    full = f"failed: {where / 'port_rcv_data'}: its 32 bits are full, and it no longer counts"
    assert reading.reasons[f"infiniband_receive_bytes_total{HERE}"] == full
    assert reading.reasons[f"infiniband_transmit_packets_total{HERE}"] == f"not found: {where / 'port_xmit_packets'}"
    assert report["infiniband_transmit_bytes_total"] is None
    assert report[f"infiniband_transmit_bytes_total{HERE}"] == (
        "unsupported: 64 bits; these 32 stop when they are full"
    )


def test_all_adapters_may_go_and_the_first_may_come(tmp_path: Path) -> None:
    traffic, ports = collectors(tmp_path)
    none = traffic.collect(at(0)).values
    write_tree(tmp_path, port_files())
    ports.collect(at(20))
    one = traffic.collect(at(20)).values
    shutil.rmtree(tmp_path / "class/infiniband")
    gone = ports.collect(at(40)), traffic.collect(at(40))

    assert (len(none), len(one), gone) == (0, 4, (({}, {}), ({}, {})))
    assert traffic.probe()["infiniband_receive_bytes_total"] == f"not found: {tmp_path / 'class/infiniband'}"
