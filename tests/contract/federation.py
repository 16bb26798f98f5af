"""One federation, used once by every verb: what verbs print, what passes the broker, what Python objects hold."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

import fedmon
from tests.contract.names import described
from tests.contract.tap import Heard, Tap
from tests.support.environment import plain_environment
from tests.support.shell import foreground
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

NODE, RESEARCHER = "ward7", "alice"
PLAN = """import time

from fedmon import TrainingPlan


class Waits(TrainingPlan):
    def run(self, context):
        context.report(loss=0.5, step=1)
        context.log("a line", level="ERROR")
        print("hello", flush=True)
        time.sleep(context.arguments.get("seconds", 0))
        return {"rows": len(list(context.dataset.rows()))}
"""
STEPS = """[experiment]
id = "two-steps"

[[resource]]
name = "make"
type = "local::Process"
attributes = { command = ["seq", "1", "3"] }

[[resource]]
name = "count"
type = "local::Process"
start = ["after make is STOPPED"]
attributes = { command = ["true"] }
"""
UNCONFINED = {
    "FEDMON_RUNS_SANDBOX": "limits", "FEDMON_METRICS_INTERVAL_S": "0.5",
    "FEDMON_RELEASE_MODE": "auto",  # as in a folder of before
}  # fmt: skip
"""A node for which any machine is good enough."""


class OldNode:
    """Says what a node said when the messages of ``wire`` were written down; a context manager."""

    node_id = "old1"
    _ANSWERS: ClassVar = {"ping": "pong"}

    def __init__(self, url: str, wire: dict[str, Any]) -> None:
        self._wire, self._tap = wire, Tap(url, on_message=self._answer)
        self._instance = "main"

    def __enter__(self) -> Self:
        self._tap.__enter__()
        self.say("node status")
        return self

    def __exit__(self, *_: object) -> None:
        self._tap.__exit__()

    def say(self, name: str, *, job_id: str = "", topic: str = "", **fields: Any) -> None:
        """Send a message of before, of this node to the researcher bea."""
        row = self._wire[name]
        own = json.dumps(row["message"]).replace(NODE, self.node_id).replace(RESEARCHER, "bea")
        message = json.loads(own) | fields
        if job_id:
            for part in message.get("scalars") or [message.get("job") or message]:
                part["job_id"] = job_id
        place, _, qos, *flags = row["topics"][0].split()
        for word, own_id in {"<node_id>": self.node_id, "<researcher_id>": "bea", "<instance>": self._instance}.items():
            place = place.replace(word, own_id)
        self._tap.send(topic or place, message, qos=int(qos), retain="retained" in flags)

    def _answer(self, heard: Heard) -> None:
        ask = heard.message
        if not re.fullmatch(f"general/nodes/bea(/{self.node_id})?", heard.topic) or ask["command"] == "ack":
            return
        name = "samples" if ask.get("action") == "resend" else self._ANSWERS.get(ask["command"], ask["command"])
        self._instance = ask["instance"]
        echoed = {key: ask[key] for key in ("id", "session", "sequence", "action") if key in ask}
        topic = f"general/researcher/bea/{self._instance}/{self.node_id}"
        self.say(f"node {name}", job_id=ask.get("job_id") or "", topic=topic, **echoed)


def reported(tap: Tap, job_id: str) -> bool:
    """Tell whether scalars of a run were heard."""
    batches = [heard.message for heard in tap.heard if heard.message.get("command") == "run-scalars"]
    return any(one["job_id"] == job_id for batch in batches for one in batch["scalars"])


class Scene:
    """Plays everything once, in order.

    Keeps what verbs ``printed``, the messages ``heard``, the names ``held`` of Python objects, the ``replies`` of our
    node to requests of before, and the ``answers`` that our researcher gets from a node of before. ``wire`` is that.
    """

    def __init__(self, folder: Path, wire: dict[str, Any]) -> None:
        self.folder, self.node, self._wire = folder, folder / NODE, wire
        self.printed: dict[str, tuple[int, list[Any]]] = {}
        self.heard: list[Heard] = []
        self.held: dict[str, list[str]] = {}
        self.replies: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Any] = {}
        self.plan, self.steps, self.table = folder / "plan.py", folder / "steps.toml", folder / "table.csv"
        self.plan.write_text(PLAN)
        self.steps.write_text(STEPS)
        self.table.write_text("diagnosis,radius\nM,17.99\nB,11.2\n")
        self._environ = plain_environment(
            FEDMON_NODE_DIR=str(self.node), FEDMON_RESEARCHER_FOLDER=str(folder / "r"), FEDMON_RESEARCHER_ID=RESEARCHER
        )

    def play(self) -> None:
        """Play it; what it starts has ended afterwards."""
        place = ("--data-dir", self.folder / "broker")
        with foreground("broker", "start", "--port", "0", *place, environ=plain_environment()) as broker:
            url = broker.facts["url"]
            self.printed["broker start"] = (0, [broker.facts])
            self._environ["FEDMON_BROKER_URL"] = url
            self._before_the_node_runs(url)
            with Tap(url) as tap, foreground("node", "start", environ=self._environ | UNCONFINED) as node:
                self.printed["node start"] = (0, [node.facts])
                tap.wait_for(f"general/status/{NODE}", state="online")
                self._asked()
                self._approved(tap)
                self._run(tap)
                self._measured()
                self._by_python()
                self._refused(tap)
                self._replayed(tap)
                self.verb("doctor", "--timeout", "30")
                self.verb("node stop")
                tap.wait_for(f"general/status/{NODE}", state="offline")
                self.heard = list(tap.heard)
                self._answered_by_an_old_node(url)
                self.verb("nodes")
                self.verb("nodes forget", NODE)
        self.verb("ping", "--timeout", "0.5", title="ping (no broker)")
        self._owned()
        self._experiment()
        self._broker_kept()

    def verb(self, words: str, *more: object, title: str = "") -> Any:
        """Run a verb with ``--json``; keep how it ended and what it printed, and return the first document."""
        done = fedmon_here(*words.split(), *more, "--json", environ=self._environ)
        documents = [json.loads(line) for line in done.stdout.splitlines()]
        self.printed[title or words] = (done.returncode, documents)
        return documents[0] if documents else None

    def _before_the_node_runs(self, url: str) -> None:
        self.verb("node init", "--id", NODE, "--broker", url)
        self.verb("node init", "--id", NODE, "--broker", url, title="node init (again)")
        self.verb("node dataset add", self.table, "--name", "cells", "--tags", "cells,tabular", "--parameters", "{}")
        self.verb("node dataset edit", "cells", "--description", "three cells")
        self.verb("node dataset show", "cells")
        self.verb("node dataset list")
        self.verb("node policy allow", RESEARCHER, "--job-output", "--log-level", "INFO")
        self.verb("node policy deny", "bob", "--dataset", "cells")
        self.verb("node policy allow", RESEARCHER, "--dataset", "cells")
        self.verb("node policy show")
        self.verb("node config path")
        self.verb("node config show")
        self.verb("node probe")
        self.verb("node status", title="node status (stopped)")
        self.verb("plan check", self.plan, "--dataset", self.table, "--no-sandbox")

    def _asked(self) -> None:
        self.verb("nodes", title="nodes (one)")
        self.verb("ping")
        self.verb("ping", "--node", "nobody", "--timeout", "30", title="ping (nobody)")
        self.verb("list")
        self.verb("search", "cells")
        self.verb("ping", "--tiemout", title="ping (wrong use)")
        # Null until the node has tried its sandbox.
        wait_until(lambda: self.verb("node status")["live"]["sandbox"])

    def _approved(self, tap: Tap) -> None:
        self.verb("approve", self.plan, "--description", "waits")
        self.verb("run", self.plan, "--tags", "cells", title="run (not approved)")
        self.verb("node plan list")
        self.verb("node plan show", "plan")
        rules = self.folder / "rules.json"
        rules.write_text('{"seconds": [0, 60, "x"]}')  # these bytes are in what was written down, and declare none
        self.verb("node plan approve", sha256(self.plan), "--note", "fine", "--arguments", rules)
        tap.wait_for(f"general/researcher/{RESEARCHER}/.*", command="plan-decision", status="approved")
        self.verb("approve", self.plan, "--status", title="approve --status")
        other = self.folder / "other.py"
        other.write_text(PLAN.replace("a line", "another line"))
        plan_id = self.verb("node plan register", other, "--name", "plan")["plan"]["plan_id"]
        self.verb("node plan diff", plan_id)
        self.verb("node plan reset", plan_id)
        self.verb("node plan reject", plan_id, "--note", "no")
        self.verb("node plan delete", plan_id)
        self.verb("node plan show", plan_id, title="node plan show (deleted)")

    def _run(self, tap: Tap) -> None:
        self.verb("run", self.plan, "--tags", "cells", "--wait", "60", "--output", self.folder / "results")
        job_id = tap.wait_for(".*", command="job-outcome").message["job"]["job_id"]
        self.verb("jobs")
        self.verb("jobs", job_id, title="jobs JOB")
        self.verb("job-logs", job_id)
        self.verb("node runs list")
        self.verb("node runs show", job_id)
        for title, command in (("run --detach", "stop"), ("run --detach (2)", "node runs stop")):
            words = ("--tags", "cells", "--detach", "--arg", "seconds=60")
            long_one = find(self.verb("run", self.plan, *words, title=title), "job_id")
            wait_until(lambda job_id=long_one: reported(tap, job_id), what="a report of the run")  # type: ignore[misc]
            self.verb(command, long_one)
        self.verb("stop", "01a1fc42-0000-7000-8000-000000000001", title="stop (unknown)")

    def _measured(self) -> None:
        self.verb("watch", "--count", "2", "--interval", "0.2", "--metric", "host_load1")
        self.verb("record", self.folder / "kept.sqlite", "--for", "6", "--interval", "0.2")
        self.verb("node add-scalar", "accuracy", "0.9", "--step", "1")
        self.verb("node job watch", "mine", "--pid", os.getpid())
        self.verb("node job list")
        self.verb("node job forget", "mine")

    def _by_python(self) -> None:
        """Hold every kind of object that a script of a researcher gets."""
        url, held = self._environ["FEDMON_BROKER_URL"], dict[str, Any]()
        with fedmon.Federation(url, researcher_id=RESEARCHER, folder=self.folder / "r") as connected:
            fed: Any = connected
            nodes, pong, found = fed.nodes(), fed.ping(), fed.search(["cells"])
            held |= {"nodes()": nodes, "nodes()[id]": nodes[NODE], "ping()": pong, "ping().ok[id]": pong.ok[NODE]}
            held |= {"search().ok[id]": found.ok[NODE], "search().ok[id].datasets[0]": found.ok[NODE].datasets[0]}
            asked, known = fed.approve(self.plan), fed.plan_status(self.plan)
            held |= {"approve().ok[id]": asked.ok[NODE], "plan_status().ok[id]": known.ok[NODE]}
            held["ping(unknown)[id]"] = fed.ping(nodes=["nobody"], timeout_s=0.2)["nobody"]
            with fed.monitor(interval_s=0.2) as watch:
                sample = watch.next(timeout_s=60)
                report = wait_until(lambda: watch.capabilities.get(NODE), what="what the node can measure")
                held |= {"monitor()": watch, "sample": sample, "monitor().capabilities[id]": report}
            run = fed.run(self.plan, tags=["cells"])
            assert run.result(timeout_s=60) == {NODE: {"rows": 2}}
            held |= {"run()": run, "jobs()": fed.jobs(), "status()": fed.status()}
            failing = fed.run(self.plan, tags=["cells"], args={"seconds": "x"})
            try:
                failing.result(timeout_s=60)
            except fedmon.RunFailedError as error:
                held["RunFailedError"] = error
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("FEDMON_BROKER_URL", url)
            environment.setenv("FEDMON_RESEARCHER_FOLDER", str(self.folder / "historic"))
            requests = fedmon.Requests()
        with requests:
            held |= {"get_messaging()": requests.get_messaging()}
            held |= {"get_responses()": requests.get_responses([], timeout=0.01)}
        self.held = {name: described(value) for name, value in held.items()}

    def _refused(self, tap: Tap) -> None:
        ask: dict[str, Any] = {
            "researcher_id": "mallory",
            "instance": "main",
            "session": "s",
            "protocol_version": "fedmon/1",
        }
        ask |= {"command": "ping", "id": "01a1fc41-973f-743d-bd11-0b40802d3c4a", "sequence": 1}
        tap.send("general/nodes/mallory", ask | {"expires": "2100-01-01T00:00:00Z"})
        tap.wait_for(f"general/researcher/mallory/main/{NODE}", command="error")

    def _replayed(self, tap: Tap) -> None:
        """Send each request as a researcher of before sent it; keep the replies."""
        job_id = "01a1fc42-0000-7000-8000-000000000002"
        boot = tap.wait_for(f"general/monitoring/{NODE}", command="sample").message["boot"]
        for number, name in enumerate(asked(self._wire)):
            row = self._wire[name]
            same = {
                "id": f"01a1fc41-973f-743d-bd11-{number:012}",
                "session": "old",
                "sequence": number,
                "instance": "old",
            }
            request = row["message"] | same | {"expires": "2100-01-01T00:00:00Z"}
            if request.get("job_id"):
                request["job_id"] = job_id
            if request.get("boot"):
                request["boot"] = boot
            tap.send(
                row["topics"][0].split()[0].replace("<researcher_id>", RESEARCHER).replace("<node_id>", NODE), request
            )
            self.replies[name] = tap.wait_for(".*", id=same["id"], node_id=NODE).message

    def _answered_by_an_old_node(self, url: str) -> None:
        """Ask a node that says what a node said before, and keep what a script gets."""
        if not self._wire:
            return
        options: dict[str, Any] = {"researcher_id": "bea", "folder": self.folder / "bea", "timeout_s": 20.0}
        with OldNode(url, self._wire) as node, fedmon.Federation(url, **options) as fed:
            told: list[Any] = []
            fed.on("decision", told.append)
            names = [node.node_id]
            self.answers["ping"] = fed.ping(nodes=names).ok
            self.answers["datasets"] = fed.datasets(nodes=names).ok
            self.answers["search"] = fed.search(["cells"], nodes=names).ok
            self.answers["approve"] = fed.approve(self.plan, nodes=names).ok
            self.answers["plan_status"] = fed.plan_status(self.plan, nodes=names).ok
            with fed.monitor(nodes=names, interval_s=0.5) as watch:
                wait_until(lambda: watch.capabilities, what="an answer to monitor")
                node.say("node sample")
                self.answers["monitor"] = watch.next(timeout_s=60)
            node.say("node plan-decision")
            self.answers["decision"] = wait_until(lambda: told, what="a decision")[0]
            run = fed.run(self.plan, tags=["cells"], nodes=names)
            node.say("node run-scalars", job_id=run.job_id)
            node.say("node job-outcome", job_id=run.job_id)
            self.answers["run"] = run.result(timeout_s=60)
            self.answers["scalars"] = run.scalars

    def _owned(self) -> None:
        self.verb("node audit show", "--last", "1000")
        self.verb("node audit verify")
        self.verb("node dataset remove", "cells")
        self.verb("node dataset show", "cells", title="node dataset show (removed)")
        self.verb("node status", "--dir", self.folder / "none", title="node status (no node)")

    def _experiment(self) -> None:
        self.verb("experiment check", self.steps)
        self.verb("experiment run", self.steps, "--dir", self.folder / "runs", "--timeout", "60")
        (run_dir,) = (self.folder / "runs" / "two-steps").iterdir()
        for verb in ("show", "watch", "report", "reconnect"):
            self.verb(f"experiment {verb}", run_dir)
        self.verb("experiment graph", run_dir, "--output", self.folder / "run.dot")
        self.verb("experiment show", self.folder / "none", title="experiment show (no run)")

    def _broker_kept(self) -> None:
        place = ("--data-dir", self.folder / "users")
        for party in ("broker user", "broker repository token"):
            role = ("--role", "node") if party == "broker user" else ()
            self.verb(f"{party} add", NODE, *role, *place)
            self.verb(f"{party} add", NODE, *role, *place, title=f"{party} add (again)")
            self.verb(f"{party} list", *place)
            self.verb(f"{party} remove", NODE, *place)
            self.verb(f"{party} remove", NODE, *place, title=f"{party} remove (again)")
        self.verb("broker config show")
        self.verb("broker config write", self.folder / "written")


def asked(wire: dict[str, Any]) -> list[str]:
    """Return the messages of a researcher that have a reply."""
    return [name for name in wire if name.startswith("researcher ") and name.split()[1] not in ("ack", "marker")]


def sha256(file: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def find(document: Any, key: str) -> Any:
    """Return the first value of a key, at any depth of a document."""
    if isinstance(document, dict) and key in document:
        return document[key]
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    return next((found for each in inner if (found := find(each, key)) is not None), None)
