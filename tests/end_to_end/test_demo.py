"""The guided first run, as a stranger starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import msgspec
import psutil
import pytest

from fedmon.demo.regression import Cost, Round
from fedmon.demo.rounds_table import explanation, round_columns, round_row
from tests.support.node_process import fedmon, plain_environment
from tests.support.waiting import wait_until


def test_the_demo_walks_through_every_step_and_ends_well() -> None:
    done = fedmon("demo", "--json", timeout_s=60)
    document = json.loads(done.stdout)

    assert done.returncode == 0, document
    assert document["ok"] is True
    assert set(document["plan"]["decisions"].values()) == {"approved"}
    assert document["search"] == {"hospital-east": 0, "hospital-north": 0, "hospital-south": 1}
    assert sorted(dataset["shape"] for dataset in document["datasets"]) == ["167 x 31", "190 x 31", "212 x 31"]
    assert document["offline"]["reason"] == "connection lost"
    assert document["offline"]["seen_after_s"] <= 2.0
    assert document["metrics"]["lost"] == 0
    assert document["timings_s"]["total"] <= 40
    rounds = document["regression"]["rounds"]
    accuracies = [one["accuracy"] for one in rounds]
    assert accuracies[0] < 0.7
    assert accuracies[-1] == pytest.approx(0.9789, abs=1e-4)
    assert rounds[-1]["step"] < 1e-9
    for one in rounds:
        assert set(one["nodes"]) == set(document["plan"]["decisions"])
        for cost in one["nodes"].values():
            assert cost["seconds"] > 0
            assert cost["bytes_sent"] > 0
            assert cost["bytes_received"] > 0
            assert cost["joules"] is None or cost["joules"] > 0
            assert cost["sandbox"] in ("bubblewrap", "landlock", "limits")


def test_a_demo_whose_node_dies_prints_plain_lines_until_it_fails_with_a_sentence() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmon", "demo"],
        env=plain_environment(PYTHONUNBUFFERED="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("[4/9]"):
            break
    next(
        child
        for child in psutil.Process(process.pid).children()
        if any("hospital-south" in word for word in child.cmdline())
    ).kill()
    _, said = process.communicate(timeout=40)

    assert process.returncode == 1
    assert "hospital-south" in said
    assert "Traceback" not in said
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/9]", "[2/9]", "[3/9]", "[4/9]"]
    assert any("hospital-east" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_kept_demo_can_be_joined_and_ends_with_all_its_processes() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmon", "demo", "--keep", "--json"],
        env=plain_environment(PYTHONUNBUFFERED="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        document = json.loads("".join(lines))
        joined = fedmon("ping", "--broker", document["broker"]["url"], "--json")
        python = subprocess.run(
            [sys.executable, "-c", document["connect"]["python"]],
            env=plain_environment(), capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)

    assert joined.returncode == 0, joined.stdout
    assert len(json.loads(joined.stdout)["outcomes"]) == 3
    assert python.stdout.count("online") >= 3, python.stderr
    assert code == 143
    wait_until(lambda: not _alive(process.pid), what="every process of the demo to end")


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_table_of_rounds_has_room_on_80_columns() -> None:
    nodes = ["hospital-north", "hospital-east", "hospital-south"]
    cost = Cost(seconds=0.58, bytes_sent=1590, bytes_received=2143, joules=None, sandbox="bubblewrap")
    one = Round(number=10, loss=0.0795, accuracy=0.979, step=1e-10, seconds=1.2, nodes=dict.fromkeys(nodes, cost))

    heads, row = round_columns(nodes), round_row(one, nodes)

    assert heads == ["round", "accuracy", "loss", "took", "north", "east", "south"]
    assert row == ["10", "97.9%", "0.0795", "1.20 s", *["0.58 s 3733 B"] * 3]
    assert sum(max(len(head), len(cell)) + 2 for head, cell in zip(heads, row, strict=True)) <= 80 - 4 + 2
    assert explanation(one) == (
        "at each hospital: seconds, bytes (1590 of the model there, 2143 back), no energy is measured here; "
        "confined at level bubblewrap"
    )
    assert round_row(msgspec.structs.replace(one, nodes={}), nodes)[4:] == ["-", "-", "-"]
