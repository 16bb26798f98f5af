"""What a report is about, from recordings whose right answers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError
from fedmon.common.metrics.table import MISSING
from fedmon.common.store.recording import Recording
from fedmon.report.charts import charts_of, read_bins
from fedmon.report.document.report import user_table
from fedmon.report.document.summary import node_table
from fedmon.report.findings import Finding, find
from fedmon.report.source import Source
from fedmon.report.subject import choose
from tests.report.tables import Column, recording, samples

T0 = 1_795_255_200.0
COUNT = 101
ENDED = {"started": "2026-11-21T09:59:50+00:00", "ended": "2026-11-21T08:01:40+00:00", "exit_code": 0,
         "method": "command"}  # fmt: skip
"""How the tool notes a job of 100 s in which the clock was set back by two hours."""


def found(
    path: Path, *, stream: str = "job-7", step_s: float = 0.0, since_t: float | None = None, ended: bool = False
) -> dict[str, Finding]:
    """What is found in samples once a second, where the wall clock is set by ``step_s`` after 50 s."""
    columns: dict[str, Column] = {
        "job_cpu_user_seconds_total": [2.0 * second for second in range(COUNT)],
        "job_cpu_system_seconds_total": [0.0] * COUNT,
        "job_energy_joules_total": [10.0 * (second + 1) for second in range(COUNT)],
        "job_emissions_grams_total": [1.0 * (second + 1) for second in range(COUNT)],
    }
    t = [T0 + second + (step_s if second >= 50 else 0.0) for second in range(COUNT)]
    batch = samples(columns, stream=stream, t=t, mono=[float(second) for second in range(COUNT)])
    document = {"jobs": {"7": {"cpus": 4, **(ENDED if ended else {})}}}
    with Source([recording(path, batch, documents={"n1": document})]) as source:
        case = choose(source, since_t=since_t).read()
        return {one.name: one for one in find(case)}


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_clock_that_is_set_by_hours_takes_no_sample_and_stretches_no_time(step_s: float, tmp_path: Path) -> None:
    of_job = found(tmp_path / "job.fmr", step_s=step_s, ended=True)
    of_node = found(tmp_path / "node.fmr", step_s=step_s, stream="host")

    assert of_job["cpu-efficiency"].figures["ratio"] == pytest.approx(0.5)
    assert of_job["cpu-efficiency"].figures["elapsed_seconds"] == pytest.approx(100)
    assert of_job["ending"].text == "The job ended with exit code 0 after 1 min 40 s."
    assert "10 W on average" in of_node["energy"].text


def test_counters_that_begin_with_the_job_count_from_the_time_that_is_looked_at(tmp_path: Path) -> None:
    whole, part = found(tmp_path / "a.fmr"), found(tmp_path / "b.fmr", since_t=T0 + 50)

    assert (whole["energy"].figures["joules"], whole["emissions"].figures["grams"]) == (1010, 101)
    assert (part["energy"].figures["joules"], part["emissions"].figures["grams"]) == (500, 50)


def test_what_is_not_in_a_recording_is_named_with_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "r.fmr"
    found(path)
    with Recording(path) as store:
        store.append([samples({"x": [1.0]}, node="n2")])
        store.describe("n3", 1, {"jobs": {"7": {"job_id": 4711}}})
        run, later, other = (f"01a22c43-{part}-797f-a9de-e16d85b9d5c9" for part in ("a8d1", "b0aa", "b1aa"))
        store.describe("n4", 1, {"jobs": {key: {} for key in (other, later, run)}})

    with Source([path]) as source:
        for wanted, why in (
            ({"job": "8"}, "no job '8' in the recording; it has 7, 01a22c43-a8d1, 01a22c43-b0aa and 01a22c43-b1aa"),
            ({"job": "471"}, "no job '471'"),
            ({"job": run[:3]}, "no job '01a'"),
            ({"nodes": ["n9"]}, "no node 'n9' in the recording; it has n1, n2, n3 and n4"),
            ({"job": "7", "nodes": ["n2"]}, "job '7' did not run on n2"),
        ):
            with pytest.raises(NotFoundError, match=why):
                choose(source, **wanted)
        assert choose(source, job="4711").read().job == "7"
        assert choose(source, job=run[:10]).read().job == run
        with pytest.raises(ConflictError, match="'01a22c43-b' matches 2 jobs: 01a22c43-b0aa and 01a22c43-b1aa"):
            choose(source, job=later[:10])
    with pytest.raises(InvalidInputError, match="at least one recording"):
        Source([])


def test_a_subject_spans_all_its_samples_also_where_the_clock_was_set_back(tmp_path: Path) -> None:
    found(tmp_path / "r.fmr", step_s=-7200.0)

    with Source([tmp_path / "r.fmr"]) as source:
        assert choose(source).span == (T0 - 7150, T0 + 49)


def test_the_report_of_a_job_has_what_runs_of_any_researcher_reported(tmp_path: Path) -> None:
    job = samples({"job_cpu_user_seconds_total": [float(second) for second in range(COUNT)]}, stream="job-7")
    moments = [job.t[second] for second in (3, 60)]
    loss = samples({'user_value{name="loss",job="7"}': [1.0, 0.5]}, stream="user-alice", t=moments)
    other = [samples({"job_processes": [1.0] * COUNT}, stream="job-8"),
             samples({'user_value{name="loss",job="8"}': [9.0, 9.5]}, stream="user-bob", t=moments)]  # fmt: skip

    with Source([recording(tmp_path / "r.fmr", job, loss, *other)]) as source:
        case = choose(source, job="7").read()
    findings = {one.name: one for one in find(case)}

    assert user_table(case).rows == (("loss", "n1", "0.5", MISSING),)
    assert "user-alice" not in findings["gaps"].text


def test_samples_that_another_recording_has_or_lost_too_are_not_lost_twice(tmp_path: Path) -> None:
    for stored in (10, 15):
        path = recording(tmp_path / f"{stored}.fmr", samples({"host_load1": [1.0] * stored}))
        with Recording(path) as store:
            store.set_all_lost([(("n1", "host", 1), stored, 19, "gone")])

    with Source(tmp_path.glob("*.fmr")) as source:
        told = {one.name: one for one in find(choose(source).read())}

    assert told["gaps"].figures["lost_samples"] == 5


def test_a_report_of_chosen_nodes_does_not_miss_the_other_nodes_of_the_job(tmp_path: Path) -> None:
    batches = [samples({"job_processes": [1.0, 1.0]}, node=name, stream="job-7") for name in "ab"]
    documents = {name: {"jobs": {"7": {"nodes": ["a", "b", "c"]}}} for name in "ab"}

    with Source([recording(tmp_path / "a.fmr", *batches, documents=documents)]) as source:
        whole, part = (find(choose(source, job="7", nodes=nodes).read()) for nodes in ((), ("a",)))
        later = {one.name: one for one in find(choose(source, job="7", since_t=1e12).read())}

    assert [one.nodes for one in whole if one.name == "absent-nodes"] == [("c",)]
    assert [one.nodes for one in part if one.name == "absent-nodes"] == []
    assert "absent-nodes" not in later
    assert later["samples"].text == "No sample of the job is selected, so there are no findings."
    assert later["samples"].advice == "Select other times or nodes."


def test_nodes_with_one_boot_id_are_one_machine_and_counted_once(tmp_path: Path) -> None:
    grown: Column = [2.0**20 * second * second for second in range(COUNT)]
    sent = {f'host_network_{way}_bytes_total{{interface="eth0"}}': grown for way in ("receive", "transmit")}
    drawn: Column = [20.0 * second for second in range(COUNT)]
    machines = {"a": "one", "b": "one", "c": "other"}
    batches = [samples(sent | {"node_energy_joules_total": drawn}, node=node) for node in machines]
    batches += [samples({"job_processes": [1.0]}, node=node, stream=f"job-{at}") for node in "ab" for at in (1, 2)]
    documents = {node: {"hardware": {"boot_id": boot_id}} for node, boot_id in machines.items()}

    with Source([recording(tmp_path / "a.fmr", *batches, documents=documents)]) as source:
        subject = choose(source)
        shared = subject.read()
        charts = charts_of(read_bins(subject), subject)
    told = {one.name: one for one in find(shared)}
    lines = {one.title: [line.label for line in one.lines] for one in (*charts.first, *charts.rest)}

    assert told["energy"].figures["joules"] == 2 * 20 * (COUNT - 1)
    assert told["one-machine"].nodes == ("b",)
    rows = [row[0] + row[-1] for row in node_table(shared).rows]
    assert rows == ["a101", f"b (see a){MISSING}", "c101"]
    assert "Network traffic, total of 2 nodes" in lines
    assert lines["Network traffic: received"] == ["a (machine shared with 1 more node) and c (same values)"]


def test_ranks_on_one_host_share_the_cpus_and_the_memory_of_their_step(tmp_path: Path) -> None:
    steps = {"job-7-n1": "0", "job-7-n1-2": "0", "job-7-n1-3": "1"}
    given = {"method": "command", "cpus": 4, "memory_limit_bytes": 100 * 2**30}
    used: dict[str, Column] = {
        "job_cpu_user_seconds_total": [2.0 * second for second in range(COUNT)],
        "job_cpu_system_seconds_total": [0.0] * COUNT,
        "job_memory_peak_bytes": [48 * 2.0**30] * COUNT,
    }
    whole_machine: dict[str, Column] = {"host_cpu_count": [8.0] * COUNT}
    batches = [samples(columns, node=node, stream=stream) for node in steps
               for stream, columns in (("host", whole_machine), ("job-7", used))]  # fmt: skip
    documents = {node: {"hostname": "n1", "hardware": {"boot_id": "one"}, "jobs": {"7": {**given, "step": step}}}
                 for node, step in steps.items()}  # fmt: skip

    with Source([recording(tmp_path / "a.fmr", *batches, documents=documents)]) as source:
        whole, step = (
            {one.name: one.figures for one in find(choose(source, job="7", nodes=nodes).read())}
            for nodes in ((), ("job-7-n1", "job-7-n1-2"))
        )

    assert (step["cpu-efficiency"]["ratio"], step["cpu-efficiency"]["cpus"]) == (1.0, 4)
    assert (whole["cpu-efficiency"]["ratio"], whole["cpu-efficiency"]["cpus"]) == (0.75, 8)
    assert step["memory-peak"]["ratio"] == whole["memory-peak"]["ratio"] == 0.96


def test_monitors_that_searched_one_machine_count_the_same_processes_once(tmp_path: Path) -> None:
    late = samples({"job_cpu_user_seconds_total": [50.0], "job_cpu_system_seconds_total": [0.0]},
                   stream="job-7", seq=COUNT - 1)  # fmt: skip
    whole = samples({"job_cpu_user_seconds_total": [0.5 * second for second in range(COUNT)],
                     "job_cpu_system_seconds_total": [0.0] * COUNT}, node="n1-2", stream="job-7")  # fmt: skip
    machines = [samples({"host_cpu_count": [2.0] * amount}, node=node)
                for node, amount in (("n1", COUNT + 9), ("n1-2", COUNT))]  # fmt: skip
    document = {"hostname": "n1", "hardware": {"boot_id": "one", "threads": 2},
                "jobs": {"7": {"method": "environment", "host": "n1", "nodes": ["n1", "n2"]}}}  # fmt: skip
    documents = dict.fromkeys(("n1", "n1-2"), document)

    with Source([recording(tmp_path / "a.fmr", *machines, late, whole, documents=documents)]) as source:
        told = {one.name: one for one in find(choose(source, job="7").read())}
    documents["n1"] = document | {"jobs": {"7": {"host": "n1"}}}  # it did not find the job
    with Source([recording(tmp_path / "b.fmr", *machines, whole, documents=documents)]) as source:
        (absent,) = [one for one in find(choose(source, job="7").read()) if one.name == "absent-nodes"]

    assert told["cpu-efficiency"].figures["cpu_seconds"] == pytest.approx(50)
    assert (told["cpu-efficiency"].nodes, told["absent-nodes"].nodes, absent.nodes) == (("n1-2",), ("n2",), ("n2",))
    assert not {"one-machine", "imbalance"} & told.keys()


@pytest.mark.parametrize("given", [{"method": "command", "cpus": 2, "step": "0"}, {}], ids=["job", "machine"])
@pytest.mark.parametrize(
    ("begins", "elapsed_s", "at_once"),
    [((0, 0), 100, 2), ((0, 60), 160, 2), ((0, 200), 200, 1), ((0, 60, 120), 220, 2)],
)
def test_cpus_and_memory_that_nodes_share_one_after_another_are_counted_once(
    given: dict[str, object], begins: tuple[int, ...], elapsed_s: int, at_once: int, tmp_path: Path
) -> None:
    used: dict[str, Column] = {
        "job_cpu_user_seconds_total": [0.5 * second for second in range(COUNT)],
        "job_cpu_system_seconds_total": [0.0] * COUNT,
        "job_cpus_busy": [None, *[0.75] * (COUNT - 1)],
        "job_memory_peak_bytes": [2.0**30] * COUNT,
    }
    machine: dict[str, Column] = {"host_cpu_count": [2.0] * COUNT}
    batches = [
        samples(columns, node=f"n{begin}-{number}", stream=stream, t=[T0 + begin + at for at in range(COUNT)])
        for number, begin in enumerate(begins)
        for stream, columns in (("host", machine), ("job-7", used))
    ]
    document = {"hostname": "n", "hardware": {"boot_id": "one", "threads": 2}, "jobs": {"7": given}}
    documents = {batch.node_id: document for batch in batches}

    with Source([recording(tmp_path / "a.fmr", *batches, documents=documents)]) as source:
        told = {one.name: one for one in find(choose(source, job="7").read())}

    ratio, of_cpus = 50 * len(begins) / (elapsed_s * 2), told["cpu-efficiency"]
    expected = {"cpus": 2, "elapsed_seconds": elapsed_s, "ratio": ratio, "cpus_busy": 2 * ratio,
                "most_cpus_busy": 0.75 * at_once}  # fmt: skip
    assert {name: of_cpus.figures[name] for name in expected} == pytest.approx(expected)
    assert ("2 CPUs of the machine." in of_cpus.text) is (not given)
    assert of_cpus.advice.startswith("Ask for 1 CPU" if at_once == 1 else "In some phases it used all of them")
    assert told["memory-peak"].figures["peak_bytes"] == 2**30 * (at_once if given else 1)


@pytest.mark.parametrize(
    ("begins", "since_s", "joules"),
    [
        ((0, 200), None, 2000.0),
        ((0, 50), None, 1000.0),
        ((0, 90), None, 2000.0),
        ((0, 200), 150, 1000.0),
        ((-60, 0), 30, 700.0),
        ((0, -30, 200, 400), None, 4000.0),
    ],
    ids=["one-after-another", "at-once", "hardly-at-once", "since-the-second", "most-in-the-window", "two-boots"],
)
def test_nodes_of_one_machine_are_counted_once_only_where_they_overlap(
    begins: tuple[int, ...], since_s: float | None, joules: float, tmp_path: Path
) -> None:
    batches = []
    for number, begin in enumerate(begins):
        node, boot = "ab"[number % 2], number // 2
        for first in range(0, COUNT, 10):
            part = range(first, min(first + 10, COUNT))
            batches.append(samples({"node_energy_joules_total": [10.0 * at for at in part]}, node=node, boot=boot,
                                   seq=first, t=[T0 + begin + at for at in part]))  # fmt: skip
    documents = {node: {"hardware": {"boot_id": "one"}} for node in "ab"}

    with Source([recording(tmp_path / "a.fmr", *batches, documents=documents)]) as source:
        case = choose(source, since_t=None if since_s is None else T0 + since_s).read()

    assert {one.name: one for one in find(case)}["energy"].figures["joules"] == joules
