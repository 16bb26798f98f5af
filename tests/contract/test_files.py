"""Files that an earlier version wrote still open: recording, register, audit, jobs, runs of experiments, results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedmon.report import Source, frame
from fedmon.researcher.experiment import ExperimentController
from tests.contract.opened import opened
from tests.support.shell_here import document_here, fedmon_here

PLAN = "a4e04c6d7e9da0cfdd94c8409f7e2318d20978e9d5e3161c832f9d19a8631ffa"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder of a node with a dataset, an approved, a rejected and a pending plan, and a run."""
    return opened("node", tmp_path / "node")


def test_a_register_of_before_has_its_datasets_plans_and_runs(node: Path) -> None:
    (dataset,) = document_here("node", "dataset", "list", "--dir", node)["datasets"]
    plans = {plan["name"]: plan for plan in document_here("node", "plan", "list", "--dir", node)["plans"]}
    shown = document_here("node", "plan", "show", PLAN, "--dir", node)
    (run,) = document_here("node", "runs", "list", "--dir", node)["runs"]
    policy = document_here("node", "policy", "show", "--dir", node)["policy"]
    status = document_here("node", "status", "--dir", node)

    assert (dataset["name"], dataset["tags"], dataset["shape"]) == ("cells", ["cells", "tabular"], [2, 2])
    assert {name: plan["status"] for name, plan in plans.items()} == {
        "plan": "approved", "other": "rejected", "third": "pending",
    }  # fmt: skip
    assert [plans[name]["note"] for name in ("plan", "other")] == ["fine", "not this one"]
    assert (shown["plan"]["requested_by"], "class Means(TrainingPlan)" in shown["source"]) == (["alice"], True)
    assert (run["researcher_id"], run["state"], run["sha256"]) == ("alice", "succeeded", PLAN)
    assert document_here("node", "runs", "show", run["job_id"], "--dir", node)["run"]["scalars"] == 1
    assert (policy["researchers"], status["node_id"], status["set_aside"]) == (["alice"], "ward7", [])


def test_approvals_of_before_are_grants_for_every_researcher_without_end(node: Path) -> None:
    status = document_here("node", "status", "--dir", node)
    text = fedmon_here("node", "status", "--dir", node).stdout
    (kept,) = document_here("node", "plan", "show", PLAN, "--dir", node)["grants"]

    assert status["grants"] == {"without_limit": 1, "asked_again": 0}
    assert "1 grant is for every researcher, without end, as approvals of earlier releases" in " ".join(text.split())
    assert (kept["grant"].keys(), kept["grant"]["release"]) == ({"grant_id", "sha256", "release"}, "auto")


def test_a_register_of_before_can_be_changed(node: Path) -> None:
    (pending,) = document_here("node", "plan", "list", "--status", "pending", "--dir", node)["plans"]
    document_here("node", "plan", "approve", pending["sha256"], "--dir", node)
    document_here("node", "plan", "reset", PLAN, "--dir", node)
    document_here("node", "dataset", "edit", "cells", "--description", "anew", "--dir", node)

    plans = document_here("node", "plan", "list", "--dir", node)["plans"]

    assert {plan["name"]: plan["status"] for plan in plans} == {
        "plan": "pending", "other": "rejected", "third": "approved",
    }  # fmt: skip
    assert document_here("node", "dataset", "show", "cells", "--dir", node)["dataset"]["description"] == "anew"


def test_an_audit_of_before_verifies_and_goes_on(node: Path) -> None:
    before = document_here("node", "audit", "verify", "--dir", node)
    document_here("node", "policy", "deny", "alice", "--dir", node)

    after = document_here("node", "audit", "verify", "--dir", node)
    lines = document_here("node", "audit", "show", "--last", "1000", "--dir", node)["lines"]

    assert (before["ok"], after["ok"], after["lines"]) == (True, True, before["lines"] + 1)
    assert {"command", "reply", "dataset-add", "plan-decision", "policy-change"} <= {line["event"] for line in lines}


def test_an_audit_of_before_that_was_changed_does_not_verify(node: Path) -> None:
    file = node / "audit.jsonl"
    file.write_text(file.read_text().replace('"cells"', '"calls"', 1))

    done = fedmon_here("node", "audit", "verify", "--dir", str(node), "--json")

    assert (done.returncode, json.loads(done.stdout)["ok"]) == (1, False)


def test_a_recording_of_before_is_read(tmp_path: Path) -> None:
    with Source([opened("kept.fmr", tmp_path / "r")]) as source:
        table = frame(source, metrics=["host_load1", "job_*", "user_*"])

    assert list(table["host"].unique()) == ["ward7"]
    assert len(table.dropna(subset=["host_load1"])) == 6


def test_the_folder_of_a_job_of_before_is_merged_exported_and_reported(tmp_path: Path) -> None:
    folder = opened("job", tmp_path / "job")
    exported = document_here("export", folder, "--output", tmp_path / "job.csv")
    merged = fedmon_here("job", "merge", str(folder))
    report = document_here("report", folder, "--text")

    assert exported["written"][0]["rows"] == 5
    assert merged.returncode == 0, merged.stderr
    assert document_here("export", folder, "--output", tmp_path / "again.csv")["written"][0]["rows"] == 5
    assert (tmp_path / "job.csv").read_text() == (tmp_path / "again.csv").read_text()
    assert [word for word in ("4711", "ward7") if word not in json.dumps(report)] == []
    assert ",4711,atlas,trial," in (tmp_path / "job.csv").read_text()


def test_a_run_of_an_experiment_of_before_is_shown_reported_drawn_and_taken_up(tmp_path: Path) -> None:
    (run_dir,) = opened("run", tmp_path / "run").iterdir()
    shown = document_here("experiment", "show", run_dir)
    report = document_here("experiment", "report", run_dir)
    document_here("experiment", "graph", run_dir, "--output", tmp_path / "run.dot")

    assert (shown["well"], shown["status"], shown["exp_id"]) == (True, "ended", "two-steps")
    assert [(one["name"], one["reached"]) for one in shown["resources"]] == [("make", "STOPPED"), ("count", "STOPPED")]
    assert {one["path"]: one["size_bytes"] for one in report["traces"]}["1/stdout"] == 6
    assert "make" in (tmp_path / "run.dot").read_text()
    with ExperimentController.reconnect(run_dir) as ec:
        assert [ec.state(guid, hr=True) for guid in ec.resources] == ["RELEASED", "RELEASED"]
    with ExperimentController.load(run_dir / "experiment.toml", local_dir=tmp_path) as ec:
        assert ec.get(1, "command") == ["seq", "1", "3"]


def test_a_result_of_before_is_read_by_numpy_and_taken_as_input(tmp_path: Path) -> None:
    result = opened("result.npz", tmp_path / "result")
    plan = tmp_path / "plan.py"
    plan.write_text(
        "from fedmon import TrainingPlan\n\n\nclass Shapes(TrainingPlan):\n    def run(self, context):\n"
        "        return {name: [str(each.dtype), *each.shape] for name, each in context.inputs.items()\n"
        "                if hasattr(each, 'dtype')}\n"
    )

    with np.load(result, allow_pickle=False) as arrays:
        found = [arrays[name].tolist() for name in ("0", "1")]
        told_of = json.loads(arrays["document.json"])
    checked = document_here("plan", "check", plan, "--inputs", result, "--no-sandbox")

    assert (found, told_of["arrays"]) == ([pytest.approx([17.99, 29.19]), [[1, 0], [0, 1]]], [["sums"], ["labels"]])
    assert told_of["values"]["rows"] == 2
    assert checked["result"]["values"][0]["shape"] == [2], "the type and the length of sums"
