"""The newest values of nodes at a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.brokers import Broker
from tests.support.echo_node import sample
from tests.support.environment import researcher_environment
from tests.support.ports import free_port
from tests.support.recording_node import CPU, RecordingNode
from tests.support.requirements import require
from tests.support.shell import fedmon, foreground
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[3] / "docs" / "howtos" / "metrics-stores.md"


@contextmanager
def served(broker: Broker, folder: Path) -> Iterator[str]:
    """Run `fedmon metrics serve`, and give its URL."""
    environ = researcher_environment(broker.url, folder / "researcher")
    with foreground("metrics", "serve", "--port", "0", environ=environ) as running:
        yield str(running.facts["url"])


def fetch(url: str) -> str:
    asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return str(answer.read().decode())


def values(text: str) -> dict[tuple[str, str], float]:
    """Return the values by name and node; the text must be OpenMetrics."""
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # as prometheus_client has it
    return {(one.name, one.labels["node"]): one.value for family in families for one in family.samples}


def test_prometheus_scrapes_the_newest_value_of_each_node_and_run_as_the_page_says(
    mosquitto: Broker, tmp_path: Path
) -> None:
    program = shutil.which("prometheus")
    require(program, "prometheus is not installed")
    port = free_port()
    config = tmp_path / "prometheus.yml"
    with (
        RecordingNode(mosquitto.port, "a") as a,
        RecordingNode(mosquitto.port, "b") as b,
        served(mosquitto, tmp_path) as url,
    ):
        a.wait(lambda: a.leased)
        b.wait(lambda: b.leased)
        a.sample(3)
        b.sample(1)
        losses = {f'user_value{{job="{run}",name="loss"}}': [0.5] for run in ("first", "second")}
        a.publish("general/monitoring/a", sample("a", 0, [time.time()], losses, stream="user"))
        wait_until(lambda: len(values(fetch(url))) == 3)
        (documented,) = re.findall("(?s)```yaml\n(.*?)```", PAGE.read_text())
        target = documented.replace("127.0.0.1:9464", urllib.parse.urlsplit(url).netloc)
        config.write_text(f"global: {{scrape_interval: 1s}}\n{target}")

        def is_scraped() -> bool:
            a.sample(1)
            b.sample(1)
            return len(queried(port, CPU)) == 2

        command = [str(program), f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen(
            [*command, f"--storage.tsdb.path={tmp_path / 'tsdb'}"], stderr=subprocess.DEVNULL
        ) as prometheus:
            try:
                wait_until(is_scraped, 120.0, what="a scrape")
                found = {one["metric"]["node"]: float(one["value"][1]) for one in queried(port, CPU)}
                runs = {one["metric"]["job"] for one in queried(port, "user_value")}
            finally:
                prometheus.terminate()

    assert found.keys() == {"a", "b"}
    assert runs == {"first", "second"}
    assert 2 <= found["a"] - found["b"] <= 3


def queried(port: int, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    try:
        document: dict[str, Any] = json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/query?{query}"))
    except OSError:
        return []
    return list(document["data"]["result"])


def test_a_port_that_is_in_use_is_a_conflict(mosquitto: Broker, tmp_path: Path) -> None:
    environ = researcher_environment(mosquitto.url, tmp_path / "researcher")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = fedmon("metrics", "serve", "--port", port, "--json", environ=environ)

    assert fedmon("metrics", "serve", "--port", port, "--for", "0.1", environ=environ).returncode == 0
    assert (done.returncode, json.loads(done.stdout)["error"]["type"]) == (4, "ConflictError")


def test_names_that_openmetrics_lacks_are_left_out_and_only_this_machine_is_served(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with RecordingNode(mosquitto.port, "a") as node, served(mosquitto, tmp_path) as url:
        assert urllib.parse.urlsplit(url).hostname == "127.0.0.1"
        assert fetch(url) == "# EOF\n"
        node.wait(lambda: node.leased)
        node.sample(1)
        columns = {"": [1.0], "bad name{": [1.0], "_total": [1.0], "user_value": [0.5]}
        node.publish("general/monitoring/a", sample("a", 0, [time.time()], columns, stream="user"))
        wait_until(lambda: ("user_value", "a") in values(fetch(url)))

        assert set(values(fetch(url))) == {("_total", "a"), ("user_value", "a"), (CPU, "a")}


def test_a_counter_stays_as_the_node_read_it_and_falls_when_the_node_starts_again_or_is_set_back(
    mosquitto: Broker, tmp_path: Path
) -> None:
    name = "host_cpu_seconds_total"
    with RecordingNode(mosquitto.port, "a") as node, served(mosquitto, tmp_path) as url:
        node.wait(lambda: node.leased)
        for boot, value in ((3, 123456.0), (4, 3.5), (2, 1.25)):
            columns = {f'{name}{{mode="user"}}': [value]}
            node.publish("general/monitoring/a", sample("a", 0, [time.time()], columns, boot=boot))
            wait_until(lambda value=value: values(fetch(url)) == {(name, "a"): value})  # type: ignore[misc]  # bound now

        assert "# TYPE host_cpu_seconds counter" in fetch(url)
