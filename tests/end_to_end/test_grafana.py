"""Dashboards of Grafana: each query finds something in a real store that holds what a small federation measured."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fedmon.common.metrics.sample import Batch
from fedmon.common.settings.values import StoreSettings
from fedmon.common.store.recording import Recording
from fedmon.researcher.samples.store import StorePush, import_url
from tests.end_to_end.run_sites import SHA256, made
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess
from tests.support.store import Store
from tests.support.waiting import wait_until

ENVS = Path(__file__).parents[2] / "envs" / "grafana"
DASHBOARDS = sorted((ENVS / "dashboards").glob("*.json"))
BUILT_IN = {"__rate_interval": "30s", "__range": "5m"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    running = Store(tmp_path_factory.mktemp("victoria"))
    yield running
    running.kill()


@pytest.fixture(scope="module")
def filled(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with the samples of a node that ran a plan, and of a machine with a GPU."""
    folder = tmp_path_factory.mktemp("federation")
    broker = Broker("mosquitto", folder / "broker")
    try:
        with (
            NodeProcess(made(folder / "north", broker, metrics={"interval_s": 1.0})),
            broker.researcher(folder) as federation,
            federation.record(to=store.url, interval_s=1.0) as record,
        ):
            wait_until(lambda: federation.nodes().online)
            handle = federation.run(f"sha256:{SHA256}", tags=["cells"], args={"seconds": 24, "reports": 12})
            assert handle.wait(timeout_s=60.0)
            for metric in ("user_value", "job_memory_pss_bytes", "host_cpu_busy_ratio"):
                wait_until(lambda metric=metric: store.values(metric), what=metric)  # type: ignore[misc]  # bound now
            assert record.store is not None
            push = record.store
            wait_until(lambda: not push.counts.waiting)
    finally:
        broker.stop()
    _add_gpu_machine(store, folder / "gpu.fmr")
    return store


def _add_gpu_machine(store: Store, path: Path) -> None:
    """Send samples of a machine with a GPU and an energy counter, which this one may lack."""
    times = [time.time() - 30 + second for second in range(30)]
    energy = 'node_energy_joules_total{method="rapl"}'
    columns: dict[str, list[float | None]] = {
        "host_cpu_busy_ratio": [0.25] * 30,
        'gpu_utilization_ratio{gpu="0"}': [0.5] * 30,
        'gpu_memory_used_bytes{gpu="0"}': [1e9] * 30,
        'gpu_power_watts{gpu="0"}': [300.0] * 30,
        energy: [100.0 * second for second in range(30)],
    }
    with Recording(path) as recording:
        recording.append([Batch(node_id="gpu-1", boot=1, stream="host", seq=0, t=times, mono=times, columns=columns)])
    push = StorePush(path, import_url(store.url), StoreSettings(), is_online=lambda: {"gpu-1": True})
    assert push.stop()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_finds_something(path: Path, filled: Store) -> None:
    document = json.loads(path.read_text())
    chosen = [BUILT_IN]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            chosen = [one | {variable["name"]: value} for one in chosen for value in _values(variable, one, filled)]

    empty = [
        (panel["title"], target["expr"])
        for panel in document["panels"]
        for target in panel["targets"]
        if not any(filled.query(_replaced(target["expr"], values)) for values in chosen)
    ]
    assert chosen
    assert empty == []


def _values(variable: dict[str, Any], chosen: dict[str, str], store: Store) -> list[str]:
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
    assert found is not None
    return store.label_values(found[2], _replaced(found[1], chosen))


def _replaced(text: str, values: dict[str, str]) -> str:
    replaced = re.sub(r"\$(\w+)", lambda match: values[match[1]], text)
    assert "$" not in replaced
    return replaced


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_titles_units_and_places_of_their_own(path: Path) -> None:
    document = json.loads(path.read_text())
    panels = document["panels"]

    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels)
    places = [panel["gridPos"] for panel in panels]
    assert not [
        pair
        for pair in itertools.combinations(places, 2)
        if all(pair[0][at] < pair[1][at] + pair[1][size] for at, size in (("x", "w"), ("y", "h")))
        and all(pair[1][at] < pair[0][at] + pair[0][size] for at, size in (("x", "w"), ("y", "h")))
    ]


def test_compose_and_provisioning_agree_with_the_command() -> None:
    compose = yaml.safe_load((ENVS / "compose.yaml").read_text())
    schema = json.loads((Path(__file__).parents[1] / "data" / "compose" / "compose_spec.json").read_text())
    (source,) = yaml.safe_load((ENVS / "provisioning/datasources/fedmon.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((ENVS / "provisioning/dashboards/fedmon.yaml").read_text())["providers"]
    services = compose["services"]

    jsonschema.Draft201909Validator(schema).validate(compose)
    assert source["url"] == "http://victoria-metrics:8428"
    assert {port.rsplit(":", 2)[0] for service in services.values() for port in service["ports"]} == {"127.0.0.1"}
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services["grafana"]["volumes"]}
    assert mounted[provider["options"]["path"]] == "./dashboards"
    assert all((ENVS / source).exists() for source in mounted.values() if source.startswith("."))
    assert len(DASHBOARDS) == 4
