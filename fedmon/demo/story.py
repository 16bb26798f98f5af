"""What happens in the demo, step by step; each step has a deadline and fails with a sentence."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.wire.messages import PlanDecision
from fedmon.demo.hospitals import DATA, HOSPITALS, DemoError, Hospitals
from fedmon.demo.regression import PLAN, Regression, TrainingRound, explanation, round_columns, round_row
from fedmon.demo.screen import DemoScreen
from fedmon.researcher.asking.outcome import Outcomes
from fedmon.researcher.cli.readings import Latest, WatchState
from fedmon.researcher.cli.screen import HOST
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import Node, NodeState

STEPS = 9
WATCH_S = 4.0
SAMPLE_EVERY_S = 0.5
OFFLINE_WITHIN_S = 2.0
NEWEST = ("host_cpu_busy_ratio", "host_load1", "host_memory_total_bytes", "host_memory_available_bytes")
NODES = [hospital.node_id for hospital in HOSPITALS]
VICTIM = NODES[1]


class Story:
    """One walk through a federation; ``document`` gathers what `--json` prints."""

    def __init__(self, federation: Federation, hospitals: Hospitals, screen: DemoScreen, folder: Path) -> None:
        self._fed, self._hospitals, self._screen, self._folder = federation, hospitals, screen, folder
        self._plan = folder / PLAN
        self._changed = threading.Condition()
        self._decisions: dict[str, tuple[PlanDecision, float]] = {}
        self.document: dict[str, Any] = {"ok": False, "timings_s": {}}

    def run(self) -> None:
        """Tell the whole story. Raises DemoError, or what a part of fedmon raised."""
        with self._fed.on("presence", self._on_presence), self._fed.on("decision", self._on_decision):
            self._online()
            self._datasets()
            self._search()
            self._approval()
            self._watch()
            self._loss()
            self._return()
            self._regression()
            self._summary()
        self.document["ok"] = True

    # --- the steps -------------------------------------------------------------------------------------------------

    def _online(self) -> None:
        self._screen.step(1, STEPS, "Who is online?")
        started = time.monotonic()
        self._wait(lambda: self._are(NodeState.ONLINE, *NODES), 15.0, "the three nodes did not come online")
        self._time("all_nodes_online", started)
        nodes = [node for node in self._fed.nodes().values() if node.node_id in NODES]
        pings = self._answered(self._fed.ping(), "ping")
        self._time_exactly("ping", pings.elapsed_s)
        self._screen.table(
            ("node", "state", "since (UTC)", "version", "ping"),
            [
                (
                    node.node_id,
                    node.state.value,
                    f"{node.since:%H:%M:%S}" if node.since else "-",
                    node.agent_version,
                    _ms(pings[node.node_id].elapsed_s),
                )
                for node in nodes
            ],
        )
        self.document["nodes"] = [{"node_id": node.node_id, "state": node.state.value} for node in nodes]

    def _datasets(self) -> None:
        self._screen.step(2, STEPS, "Which datasets do they offer?")
        found = self._answered(self._fed.datasets(), "list")
        self._time_exactly("list", found.elapsed_s)
        rows = [
            (node_id, dataset.name, " x ".join(map(str, dataset.shape or ())), ", ".join(dataset.tags))
            for node_id, outcome in found.items()
            for dataset in (outcome.reply.datasets if outcome.reply else [])
        ]
        self._screen.table(("node", "dataset", "rows x columns", "tags"), rows)
        self.document["datasets"] = [
            {"node_id": node, "name": name, "shape": shape, "tags": tags} for node, name, shape, tags in rows
        ]

    def _search(self) -> None:
        self._screen.step(3, STEPS, "Who has data tagged breast-cancer and south?")
        found = self._answered(self._fed.search(["breast-cancer", "south"]), "search")
        self._time_exactly("search", found.elapsed_s)
        matches: dict[str, int] = {
            str(node_id): outcome.reply.count if outcome.reply else 0 for node_id, outcome in found.items()
        }
        self._screen.table(("node", "matches"), [(node, str(count)) for node, count in matches.items()])
        if matches.get("hospital-south") != 1 or sum(matches.values()) != 1:
            raise DemoError(f"the search should match one dataset of hospital-south, and matched {matches}")
        self.document["search"] = matches

    def _approval(self) -> None:
        self._screen.step(4, STEPS, "May this code run on your data?")
        plan = self._plan
        plan.write_bytes((DATA / plan.name).read_bytes())
        asked = self._answered(self._fed.approve(plan, description="Logistic regression, in rounds"), "approval")
        self._time_exactly("approve", asked.elapsed_s)
        sha256 = next(outcome.reply.sha256 for outcome in asked.values() if outcome.reply)
        self._screen.note(f"sent {plan.name}; every node says it is pending")
        self._screen.note(f"SHA-256 {sha256}")
        started = time.monotonic()
        for node_id in NODES:
            self._decide(node_id, sha256)
        self._wait(lambda: set(self._decisions) >= set(NODES), 5.0, "the owners' decisions did not arrive")
        self._time("three_owners_decide", started)
        rows = [
            (node_id, decision.status.value, decision.note)
            for node_id, (decision, _) in sorted(self._decisions.items())
        ]
        self._screen.note("pushed to the researcher:")
        self._screen.table(("node", "decision", "note"), rows)
        status = self._answered(self._fed.plan_status(plan), "training-plan-status")
        self.document["plan"] = {
            "sha256": sha256,
            "decisions": {node: decision.status.value for node, (decision, _) in self._decisions.items()},
            "status": {
                node: outcome.reply.status.value if outcome.reply and outcome.reply.status else None
                for node, outcome in status.items()
            },
        }

    def _decide(self, node_id: str, sha256: str) -> None:
        """Let an owner look, then decide: two processes of the owner's command line."""
        self._screen.command(f"fedmon node plan show {sha256[:8]} --dir {node_id}")
        shown = self._hospitals.owner(node_id, "plan", "show", sha256)
        if "LogisticRegression" not in str(shown):
            raise DemoError(f"the owner of {node_id} was not shown the source of the plan")
        note = "sums only"
        verb, words = "approve", ("--note", note)
        self._screen.command(f"fedmon node plan {verb} {sha256[:8]} --note '{note}' --dir {node_id}")
        self._hospitals.owner(node_id, "plan", verb, sha256, *words)

    def _watch(self) -> None:
        self._screen.step(5, STEPS, f"Live metrics of three nodes, a sample every {SAMPLE_EVERY_S:g} s")
        state = WatchState()
        deadline = Deadline(WATCH_S)
        with (
            self._fed.monitor(nodes=NODES, interval_s=SAMPLE_EVERY_S) as watch,
            self._screen.live("the newest sample of each node") as update,
        ):
            while not deadline.passed():
                sample = watch.next(timeout_s=min(0.2, deadline.left_s()))
                if sample is not None:
                    state.take(sample)
                table = HOST.table(state).narrowed(self._screen.width)
                rows = [[cell.text for cell in row.cells] for row in table.rows]
                update(table.headers, rows, min(1.0, deadline.elapsed_s() / WATCH_S))
            lost = watch.lost
        latest = {node: state.latest(node, "host") or Latest() for node in NODES}
        counts = {node: newest.samples for node, newest in latest.items()}
        if min(counts.values()) < 3:
            raise DemoError(f"live samples are missing: {counts} in {WATCH_S:g} s")
        self._screen.note(f"{sum(counts.values())} samples in {WATCH_S:g} s, {lost} lost")
        newest_of = {node: {name: newest.value(name) for name in NEWEST} for node, newest in latest.items()}
        self.document["metrics"] = {"samples": counts, "lost": lost, "newest": newest_of}

    def _loss(self) -> None:
        self._screen.step(6, STEPS, f"The process of {VICTIM} is killed")
        started = time.monotonic()
        self._hospitals.kill(VICTIM)
        self._wait(lambda: self._are(NodeState.OFFLINE, VICTIM), 10.0, f"{VICTIM} was not seen going offline")
        node, took_s = self._fed.nodes()[VICTIM], time.monotonic() - started
        self._time_exactly("offline_seen", took_s)
        self._screen.table(
            ("node", "state", "reason", "seen after"), [(VICTIM, node.state.value, node.reason, _ms(took_s))]
        )
        if took_s > OFFLINE_WITHIN_S:
            raise DemoError(f"{VICTIM} was seen going offline after {took_s:.1f} s, not within {OFFLINE_WITHIN_S:g} s")
        self.document["offline"] = {"node_id": VICTIM, "reason": node.reason, "seen_after_s": round(took_s, 4)}

    def _return(self) -> None:
        self._screen.step(7, STEPS, f"{VICTIM} comes back")
        started = time.monotonic()
        self._hospitals.start(VICTIM)
        self._wait(lambda: self._are(NodeState.ONLINE, VICTIM), 15.0, f"{VICTIM} did not come back online")
        self._time("back_online", started)
        answered = self._answered(self._fed.ping(), "ping")
        self._screen.note(f"online again after {time.monotonic() - started:.1f} s; {len(answered)} of 3 answer a ping")

    def _regression(self) -> None:
        self._screen.step(8, STEPS, "The approved plan runs: a logistic regression that sees no row, in rounds")
        if importlib.util.find_spec("numpy") is None:
            reason = "numpy is not installed: pip install 'fedmon[runs]'"
            self._screen.note(f"left out, since {reason}")
            self.document["regression"] = {"rounds": [], "reason": reason}
            return
        started = time.monotonic()
        rounds: list[TrainingRound] = []
        with self._screen.live("how good the model was that each round began with, over all rows") as update:
            for one in Regression(self._fed, self._plan).rounds():
                rounds.append(one)
                update(round_columns(NODES), [round_row(each, NODES) for each in rounds], one.progress)
        self._time("regression", started)
        self._screen.note(explanation(rounds[-1]))
        if not rounds[-1].is_last:
            raise DemoError(f"the regression did not come to rest within {len(rounds)} rounds")
        self.document["regression"] = {"rounds": msgspec.to_builtins(rounds)}

    def _summary(self) -> None:
        self._screen.step(9, STEPS, "Summary")
        names = {
            "all_nodes_online": "three nodes online",
            "ping": "ping, three nodes",
            "list": "list datasets, three nodes",
            "search": "search by tags, three nodes",
            "approve": "plan on three nodes' disks",
            "three_owners_decide": "owners look and decide (6 commands)",
            "offline_seen": "killed node seen offline",
            "back_online": "killed node back online",
            "regression": "logistic regression, all rounds",
        }
        timings = self.document["timings_s"]
        rows = [(text, _ms(timings[name])) for name, text in names.items() if name in timings]
        self._screen.table(("what", "time"), rows)

    # --- helpers of the steps ----------------------------------------------------------------------------------------

    def _on_presence(self, _node: Node) -> None:
        with self._changed:
            self._changed.notify_all()

    def _on_decision(self, decision: PlanDecision) -> None:
        with self._changed:
            self._decisions[decision.node_id] = (decision, time.monotonic())
            self._changed.notify_all()

    def _are(self, state: NodeState, *node_ids: str) -> bool:
        # Not from the callback, which hears nothing of what was known before it was registered.
        known = self._fed.nodes()
        return all(node_id in known and known[node_id].state is state for node_id in node_ids)

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = Deadline(timeout_s)
        with self._changed:
            # A short turn lets us see a node that ended by itself, which nobody would tell us.
            while not self._changed.wait_for(condition, timeout=min(0.5, deadline.left_s())):
                if not what.endswith("going offline"):
                    self._hospitals.check_alive()
                if deadline.passed():
                    raise DemoError(f"timed out after {timeout_s:g} s: {what}; {self._hospitals.ends_of_logs()}")

    def _answered(self, outcomes: Outcomes[Any], what: str) -> Outcomes[Any]:
        missing = {node: str(outcomes[node].reason) for node in outcomes if not outcomes[node].ok}
        if missing or set(outcomes) < set(NODES):
            raise DemoError(f"not every node answered {what}: {missing or outcomes}")
        return outcomes

    def _time(self, name: str, started: float) -> None:
        self._time_exactly(name, time.monotonic() - started)

    def _time_exactly(self, name: str, seconds: float) -> None:
        self.document["timings_s"][name] = round(seconds, 4)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
