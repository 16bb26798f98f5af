"""`fedmon demo`: the guided first run, step by step; each step has a deadline and fails with a sentence.

It ends with a logistic regression over the hospitals, in rounds, with the cost of the last one, and with a result that
an owner releases. The arithmetic is that of docs/examples/federated_logistic_regression.py, which is there to be read.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import importlib.util
import json as json_text
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError, NotFoundError
from fedmon.common.files import storage_errors
from fedmon.common.options import JsonOption, clean_up_at_signals
from fedmon.common.text import duration, table

if TYPE_CHECKING:
    from fedmon.broker.engine import BrokerEngine
    from fedmon.common.wire.messages import PlanDecision
    from fedmon.common.wire.runs import JobOutcome
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.roster import Node
    from fedmon.researcher.runs.handle import RunHandle
    from fedmon.researcher.runs.states import RunStates

DATA = importlib.resources.files("fedmon.demo") / "data"
HOSPITALS = {"hospital-north": "first", "hospital-east": "second", "hospital-south": "third"}
"""The part of the table that each node has."""
RESEARCHER = "demo-researcher"
USUAL_PORT = 1883
"""Of the address that researchers have without any setting."""
STEPS = 9
WATCH_S = 4.0
SAMPLE_EVERY_S = 0.5
PATIENCE_S = 60.0
"""The longest wait for a step of the story, which usually takes a second or two."""
STOP_S, COMMAND_S = 6.0, 30.0
NEWEST = ("host_cpu_busy_ratio", "host_load1", "host_memory_total_bytes", "host_memory_available_bytes")
NODES = list(HOSPITALS)
VICTIM = NODES[1]
CAREFUL = NODES[0]
"""The hospital whose owner looks at a result."""
PLAN, OTHER_PLANS = "logistic_regression_plan.py", ("mean_plan.py", "histogram_plan.py")
"""The plan of the story, and those that owners of a demo that is kept have approved too."""
TRY = ("fedmon demo --keep", "fedmon node probe", "fedmon job -- sleep 2")
TRY_KEPT = ("fedmon nodes", "fedmon watch", "fedmon doctor")
TAGS = ("breast-cancer",)
_MEASURES = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave_points")
COLUMNS = tuple(f"worst_{name}" for name in (*_MEASURES, "symmetry", "fractal_dimension"))
TABLE: Mapping[str, Any] = {"columns": list(COLUMNS), "outcome": "diagnosis", "positive": "M"}
PENALTY = 1.0
ENOUGH = 1e-9
MAX_ROUNDS = 12

Parts = Mapping[str, Mapping[str, Any]]
Row = Sequence[str]
_PLAIN_WIDTH = 120
_FEDMON = (sys.executable, "-P", "-m", "fedmon")


class DemoError(FedmonError):
    """A step of the demo failed; says which, and why."""


def demo(
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave broker and nodes running, on port 1883 if it is free; say how to connect."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start a broker and three hospitals on this machine, and walk through a researcher's work with them."""
    from fedmon.common.settings.broker import broker_from_url
    from fedmon.common.settings.values import ResearcherSettings
    from fedmon.researcher.federation import Federation

    if importlib.util.find_spec("numpy") is None:
        raise NotFoundError("numpy is not installed: install fedmon with its extra [runs], as its README says")
    screen = DemoScreen(quiet=json)
    started = time.monotonic()
    clean_up_at_signals()  # a demo must end its nodes and its broker, too
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmon-demo-"))
        stack.enter_context(storage_errors(Path(name)))
        broker = _broker(stack, keep=keep)
        hospitals = stack.enter_context(Hospitals(Path(name), broker.url))
        document: dict[str, Any] = {"ok": True, "broker": {"engine": broker.name, "url": broker.url}}
        screen.show(f"broker: {broker.name} at {broker.url}, for this machine only")
        screen.show("three hospitals, each with its part of a public table, get ready ...")
        hospitals.make()
        settings = ResearcherSettings(
            id=RESEARCHER, broker=broker_from_url(broker.url), folder=Path(name, "researcher"), timeout_s=30.0
        )
        with Federation(settings=settings) as federation:
            story = Story(federation, hospitals, screen, Path(name), document)
            story.run()
            if keep:
                story.approve_other_plans()
        screen.show(f"everything worked, in {time.monotonic() - started:.1f} s")
        if keep:
            _keep(broker, hospitals, screen, document, json=json)
        else:
            screen.commands("try next", [*_found(), *TRY])
    if json and not keep:
        print(json_text.dumps(document, indent=2))


def _broker(stack: contextlib.ExitStack, *, keep: bool) -> BrokerEngine:
    """Start a broker on a free port; one that stays on the usual port, where that is free, so that verbs find it."""
    from fedmon.broker.engine import choose_engine
    from fedmon.broker.ports import BrokerStartError, PortInUseError

    engine = choose_engine("auto")
    if keep:
        with contextlib.suppress(PortInUseError, BrokerStartError):
            return stack.enter_context(engine(port=USUAL_PORT))
    return stack.enter_context(engine())


def _keep(
    broker: BrokerEngine, hospitals: Hospitals, screen: DemoScreen, document: dict[str, Any], *, json: bool
) -> None:
    """Print how to connect, then wait for a signal."""
    python = f'import fedmon; fed = fedmon.Federation("{broker.url}").start(); print(fed.nodes())'
    shell = f"mosquitto_sub -h {broker.host} -p {broker.port} -t 'general/monitoring/#' -v"
    owners = {node: f"fedmon node plan list --dir {shlex.quote(str(hospitals.dir_of(node)))}" for node in NODES}
    lines = [*_found(), f"export FEDMON_BROKER_URL={broker.url}", *TRY_KEPT]
    document["connect"] = {"try": lines, "python": python, "mosquitto_sub": shell, "owners": owners}
    others = [shlex.join([sys.executable, "-c", python]), shell if shutil.which("mosquitto_sub") else ""]
    try:
        if json:
            print(json_text.dumps(document, indent=2), flush=True)
        screen.commands("it goes on running until Ctrl-C; in another terminal, try", lines)
        screen.commands("connect from elsewhere on this machine with", others)
        screen.commands("and decide as its owners with", list(owners.values()))
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.show("stopping")


def _found() -> list[str]:
    """Return the line after which a shell finds `fedmon`; none if it does already."""
    activate = Path(sys.executable).parent / "activate"
    return [f"source {shlex.quote(str(activate))}"] if shutil.which("fedmon") is None and activate.exists() else []


class DemoScreen:
    """Steps, sentences, answers and tables; ``width`` is how many characters fit."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        plain_width = None if sys.stdout.isatty() else _PLAIN_WIDTH
        self._console = Console(highlight=False, markup=False, quiet=quiet, width=plain_width)
        self.width = self._console.width

    def step(self, number: int, total: int, title: str) -> None:
        """Begin a step."""
        if self._console.is_terminal:
            self._console.print()
        self._console.print(f"[{number}/{total}] {title}", style="bold", soft_wrap=True)

    def show(self, answer: object) -> None:
        """Print a sentence, or an answer as its verb does."""
        self._console.print(answer, soft_wrap=True)

    def command(self, line: str) -> None:
        """Print a command as it is typed."""
        self._console.print(f"$ {line}", style="dim", soft_wrap=True)

    def commands(self, title: str, lines: Sequence[str]) -> None:
        """Print commands to be typed; empty ones are left out."""
        for line in filter(None, (title, *lines)):
            self.show(line)

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Print a table."""
        from rich.text import Text

        styles = [[""] * len(columns) for _ in rows]
        self.show(Text.from_ansi(table(columns, rows, width=self.width, fold=True, styles=styles)))


class Story:
    """One walk through a federation; ``document`` gathers the output of `--json`."""

    def __init__(
        self, federation: Federation, hospitals: Hospitals, screen: DemoScreen, folder: Path, document: dict[str, Any]
    ) -> None:
        self._fed, self._hospitals, self._screen, self._folder = federation, hospitals, screen, folder
        self._plan = folder / PLAN
        self._changed = threading.Condition()
        self._decisions: dict[str, PlanDecision] = {}
        self.document = document

    def run(self) -> None:
        """Tell the whole story. Raises DemoError, or the error of a part of fedmon."""
        with (
            self._fed.on("presence", self._on_news),
            self._fed.on("decision", self._on_decision),
            self._fed.on("outcome", self._on_news),
        ):
            self._online()
            self._datasets()
            self._search()
            self._approval()
            self._watch()
            self._loss()
            self._return()
            self._regression()
            self._held()

    # --- the steps -------------------------------------------------------------------------------------------------

    def _online(self) -> None:
        self._screen.step(1, STEPS, "Who is online?")
        self._wait(lambda: self._are("online", *NODES), "the three nodes did not come online")
        nodes = self._fed.nodes()
        self._screen.show(nodes)
        slowest_s = max(one.elapsed_s or 0.0 for one in self._answered(self._fed.ping(), "ping").values())
        self._screen.show(f"all answer a ping, the last after {duration(slowest_s)}")
        self.document["nodes"] = [{"node_id": name, "state": node.state.value} for name, node in nodes.items()]

    def _datasets(self) -> None:
        self._screen.step(2, STEPS, "Which datasets do they offer?")
        found = self._answered(self._fed.datasets(), "list")
        self._screen.show(found)
        self.document["datasets"] = [
            {"node_id": row["node"], "name": row["name"], "shape": row["shape"], "tags": ", ".join(row["tags"])}
            for row in found.rows()
        ]

    def _search(self) -> None:
        self._screen.step(3, STEPS, "Who has data tagged breast-cancer and south?")
        found = self._answered(self._fed.search(["breast-cancer", "south"]), "search")
        self._screen.show(found)
        self.document["search"] = {str(node_id): reply.count for node_id, reply in found.ok.items()}

    def _approval(self) -> None:
        self._screen.step(4, STEPS, "May this code run on your data?")
        self._plan.write_bytes((DATA / PLAN).read_bytes())
        wanted = self._fed.approve(self._plan, description="Logistic regression, in rounds", datasets=TAGS)
        asked = self._answered(wanted, "approval")
        sha256 = next(outcome.reply.sha256 for outcome in asked.values() if outcome.reply)
        self._screen.show(asked)
        self._screen.show(f"SHA-256 {sha256}")
        for node_id in NODES:
            self._decide(node_id, sha256)
        self._wait(lambda: set(self._decisions) >= set(NODES), "the owners' decisions did not arrive")
        for node, decision in sorted(self._decisions.items()):
            self._screen.show(f"pushed to the researcher: {node} {decision.status.value} it ({decision.note})")
        status = self._answered(self._fed.plan_status(self._plan), "training-plan-status")
        self.document["plan"] = {
            "sha256": sha256,
            "decisions": {node: decision.status.value for node, decision in self._decisions.items()},
            "status": {node: reply.status and reply.status.value for node, reply in status.ok.items()},
        }

    def _decide(self, node_id: str, sha256: str) -> None:
        """Let an owner look, then decide: two processes of the owner's command line."""
        self._typed(node_id, "plan", "show", sha256[:8])
        self._typed(node_id, "plan", "approve", sha256[:8], "--yes", "--for", "*", "--note", "sums only")

    def approve_other_plans(self) -> None:
        """Have the owners approve the plans of the other examples, for those who join."""
        from concurrent.futures import ThreadPoolExecutor

        for name in OTHER_PLANS:
            plan = self._folder / name
            plan.write_bytes((DATA / name).read_bytes())
            asked = self._answered(self._fed.approve(plan, description="An example of the documentation"), "approval")
            sha256 = next(outcome.reply.sha256 for outcome in asked.values() if outcome.reply)
            words = ("plan", "approve", sha256, "--for", "*", "--note", "sums only")
            with ThreadPoolExecutor(len(NODES)) as pool:
                for done in [pool.submit(self._hospitals.owner, node_id, *words) for node_id in NODES]:
                    done.result()

    def _typed(self, node_id: str, *words: str) -> dict[str, Any]:
        """Print a command of an owner as it runs, and run it."""
        self._screen.command(shlex.join(["fedmon", "node", *words, "--dir", str(self._hospitals.dir_of(node_id))]))
        return self._hospitals.owner(node_id, *words)

    def _watch(self) -> None:
        from fedmon.researcher.cli.readings import Latest, WatchState
        from fedmon.researcher.cli.screen import HOST, compose, text_screen

        self._screen.step(5, STEPS, f"Live metrics of three nodes, a sample every {SAMPLE_EVERY_S:g} s")
        state = WatchState()
        deadline, counts = Deadline(PATIENCE_S), dict.fromkeys(NODES, 0)
        with self._fed.monitor(nodes=NODES, interval_s=SAMPLE_EVERY_S) as watch:
            while deadline.elapsed_s() < WATCH_S or (min(counts.values()) < 3 and not deadline.passed()):
                sample = watch.next(timeout_s=0.2)
                if sample is not None:
                    state.take(sample)
                counts = {node: (state.latest(node, "host") or Latest()).samples for node in NODES}
            lost = watch.lost
        latest = {node: state.latest(node, "host") or Latest() for node in NODES}
        if min(counts.values()) < 3:
            raise DemoError(f"live samples are missing: {counts} in {PATIENCE_S:g} s")
        width = self._screen.width
        shown = compose(state, [HOST], capabilities={}, refusals={}, width=width, height=None, lost=lost)
        self._screen.show(text_screen(shown, width=width))
        newest_of = {node: {name: newest.value(name) for name in NEWEST} for node, newest in latest.items()}
        self.document["metrics"] = {"samples": counts, "lost": lost, "newest": newest_of}

    def _loss(self) -> None:
        self._screen.step(6, STEPS, f"The process of {VICTIM} is killed")
        started = time.monotonic()
        self._hospitals.kill(VICTIM)
        self._wait(lambda: self._are("offline", VICTIM), f"{VICTIM} was not seen going offline")
        nodes, took_s = self._fed.nodes(), time.monotonic() - started
        self._screen.show(nodes)
        self._screen.show(f"seen after {duration(took_s)}")
        self.document["offline"] = {
            "node_id": VICTIM, "reason": nodes[VICTIM].reason, "seen_after_s": round(took_s, 4)
        }  # fmt: skip

    def _return(self) -> None:
        self._screen.step(7, STEPS, f"{VICTIM} comes back")
        started = time.monotonic()
        self._hospitals.start(VICTIM)
        self._wait(lambda: self._are("online", VICTIM), f"{VICTIM} did not come back online")
        answered = self._answered(self._fed.ping(), "ping")
        self._screen.show(f"online again after {time.monotonic() - started:.1f} s; {len(answered)} of 3 answer a ping")

    def _regression(self) -> None:
        self._screen.step(8, STEPS, "The approved plan runs: a logistic regression that sees no row, in rounds")
        rounds = list(training(self._fed, self._plan))
        self._screen.show("how good the model was that each round began with, over all rows")
        rows = [(str(one.round), f"{one.accuracy * 100:.1f} %", f"{one.loss:.4f}", f"{one.seconds:.2f} s")
                for one in rounds]  # fmt: skip
        self._screen.table(("round", "accuracy", "loss", "took"), rows)
        self._screen.show("the last round at each hospital")
        self._screen.show(rounds[-1].states)
        if rounds[-1].step >= ENOUGH:
            raise DemoError(f"the regression did not converge within {len(rounds)} rounds")
        self.document["regression"] = {"rounds": [one._asdict() | {"states": one.states.rows()} for one in rounds]}

    def _held(self) -> None:
        from fedmon.node.owner.cli.results import in_words
        from fedmon.researcher.runs.errors import RunHeldError

        self._screen.step(9, STEPS, f"The owner of {CAREFUL} looks at a result before it leaves")
        self._hospitals.set_release(CAREFUL, "ask")
        run = self._fed.run(self._plan, nodes=[CAREFUL], tags=list(TAGS), args={**TABLE, "task": "describe"})
        try:
            run.result(timeout_s=PATIENCE_S)
        except RunHeldError as held:
            self._screen.show(f"{CAREFUL}: {held.failed[CAREFUL]}")
        shown = self._typed(CAREFUL, "results", "show", run.job_id)
        rows = [(str(each["place"]), in_words(each["kind"]), str(each["count"])) for each in shown["entries"]]
        self._screen.table(("entry", "kind", "values"), rows)
        self._typed(CAREFUL, "results", "release", run.job_id, "--note", "means only")
        self._wait(lambda: run.states()[CAREFUL].succeeded, "the released result did not arrive")
        result = run.result(timeout_s=PATIENCE_S)[CAREFUL]
        self._screen.show(f"{CAREFUL}: {run.states()[CAREFUL].sentence()}; {result['rows']} rows are in it")
        self.document["release"] = {"node_id": CAREFUL, "job_id": run.job_id, "rows": result["rows"]}
        self._hospitals.set_release(CAREFUL, "auto")

    # --- helpers of the steps ----------------------------------------------------------------------------------------

    def _on_news(self, _news: Node | JobOutcome) -> None:
        with self._changed:
            self._changed.notify_all()

    def _on_decision(self, decision: PlanDecision) -> None:
        with self._changed:
            self._decisions[decision.node_id] = decision
            self._changed.notify_all()

    def _are(self, state: str, *node_ids: str) -> bool:
        # Not from the callback, which hears nothing of what was known before it was registered.
        known = self._fed.nodes()
        return all(node_id in known and known[node_id].state.value == state for node_id in node_ids)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = Deadline(PATIENCE_S)
        with self._changed:
            # A short turn lets us see a node that ended by itself, of which no message tells.
            while not self._changed.wait_for(condition, timeout=min(0.5, deadline.left_s())):
                self._hospitals.check_alive()
                if deadline.passed():
                    raise DemoError(f"timed out after {PATIENCE_S:g} s: {what}; {self._hospitals.ends_of_logs()}")

    def _answered(self, outcomes: Outcomes[Any], what: str) -> Outcomes[Any]:
        missing = {node: str(outcomes[node].reason) for node in outcomes if not outcomes[node].ok}
        if missing or set(outcomes) < set(NODES):
            raise DemoError(f"not every node answered {what}: {missing or outcomes}")
        return outcomes


class TrainingRound(NamedTuple):
    """One round: the quality of its first model, the distance moved, and its run on each node.

    ``seconds`` is the duration at the researcher, from the request to the last answer.
    """

    round: int
    accuracy: float
    loss: float
    step: float
    seconds: float
    states: RunStates


def training(federation: Federation, plan: Path) -> Iterator[TrainingRound]:
    """Train a model that no hospital and no researcher could train alone, until nothing changes.

    Raises RunFailedError, or the error of asking.
    """
    import numpy as np

    def run(inputs: Mapping[str, Any], group: str = "", **task: Any) -> RunHandle:
        return federation.run(plan, tags=list(TAGS), args={**TABLE, **task}, inputs=inputs, group=group)

    described = run({}, task="describe").result(timeout_s=PATIENCE_S)
    center = _average(described, "mean")
    scale = np.sqrt(_average(described, "square") - center**2)
    weights = np.zeros(len(COLUMNS) + 1)
    penalty = np.diag([0.0, *[PENALTY / sum(part["rows"] for part in described.values())] * len(COLUMNS)])
    for number in range(1, MAX_ROUNDS + 1):
        began = time.monotonic()
        handle = run({"weights": weights, "center": center, "scale": scale}, "demo", task="step", round=number)
        parts = handle.result(timeout_s=PATIENCE_S)
        taken_s = time.monotonic() - began
        # One Newton step on the averages of all hospitals.
        gradient = _average(parts, "gradient") + penalty @ weights
        step = np.linalg.solve(_average(parts, "curvature") + penalty, gradient)
        weights = weights - step
        length = float(np.linalg.norm(step))
        accuracy, loss = (float(_average(parts, name)) for name in ("accuracy", "loss"))
        yield TrainingRound(number, accuracy, loss, length, taken_s, handle.states())
        if length < ENOUGH:
            return


def _average(parts: Parts, name: str) -> Any:
    """Average the hospitals' results under a name, each weighted by its rows."""
    rows = sum(part["rows"] for part in parts.values())
    return sum(part["rows"] * part[name] for part in parts.values()) / rows


class Hospitals:
    """Makes the three nodes by the owner's own commands, starts, kills and stops them; leaves no process behind."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self._folder, self._broker_url = folder, broker_url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def dir_of(self, node_id: str) -> Path:
        """Return the folder of a node."""
        return self._folder / node_id

    def make(self) -> None:
        """Make the three nodes as their owners would, and start each. Raises DemoError."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(HOSPITALS)) as pool:
            list(pool.map(self._make, HOSPITALS))

    def _make(self, node_id: str) -> None:
        side = node_id.removeprefix("hospital-")
        data = self._folder / f"{node_id}-data"
        data.mkdir(parents=True)
        file = data / f"breast_cancer_{side}.csv"
        file.write_bytes((DATA / file.name).read_bytes())
        self.owner(node_id, "init", "--id", node_id, "--broker", self._broker_url)
        self._write_release(node_id, "auto")
        self.owner(node_id, "policy", "allow", "*")
        self.owner(
            node_id, "dataset", "add", str(file), "--name", "breast-cancer", "--type", "csv",
            "--description", f"Wisconsin diagnostic table, {HOSPITALS[node_id]} part",
            "--tags", f"breast-cancer,tabular,{side}",
        )  # fmt: skip
        self.start(node_id)

    def start(self, node_id: str) -> None:
        """Start the node's daemon."""
        with (self._folder / f"{node_id}.log").open("ab") as log:
            self._processes[node_id] = subprocess.Popen(
                [*_FEDMON, "node", "start", "--dir", str(self.dir_of(node_id))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
            )

    def set_release(self, node_id: str, mode: str) -> None:
        """Change how results leave a running node, as its owner would. Raises DemoError."""
        self._write_release(node_id, mode)
        self._processes[node_id].send_signal(signal.SIGHUP)
        deadline = Deadline(COMMAND_S)
        while self.owner(node_id, "status")["release"]["mode"] != mode:
            if deadline.passed():
                raise DemoError(f"{node_id} did not follow its settings within {COMMAND_S:g} s")

    def _write_release(self, node_id: str, mode: str) -> None:
        file = self.dir_of(node_id) / "node.toml"
        file.write_text(re.sub("^mode = .*", f'mode = "{mode}"', file.read_text(), flags=re.MULTILINE))

    def kill(self, node_id: str) -> None:
        """End the node's process at once, as a crash or a power cut would."""
        self._processes[node_id].kill()  # before it is forgotten, for the sake of Ctrl-C
        self._processes.pop(node_id).wait()

    def check_alive(self) -> None:
        """Raise DemoError, with the end of its log, when a node ended by itself."""
        for node_id, process in self._processes.items():
            if process.poll() is not None:
                log = self._end_of_log(node_id, 5)
                raise DemoError(f"node {node_id} ended with exit code {process.returncode}: {log}")

    def ends_of_logs(self) -> str:
        """Return the last lines that each node logged, on one line."""
        return "; ".join(f"log of {node_id}: {self._end_of_log(node_id, 2)}" for node_id in self._processes)

    def _end_of_log(self, node_id: str, count: int) -> str:
        lines = (self._folder / f"{node_id}.log").read_text(errors="replace").splitlines()[-count:]
        return " | ".join(lines) or "(empty)"

    def owner(self, node_id: str, *words: str) -> dict[str, Any]:
        """Run one of the owner's commands in a process, and return its JSON. Raises DemoError."""
        line = [*_FEDMON, "node", *words, "--dir", str(self.dir_of(node_id)), "--json"]
        try:
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, env=_environment(), check=False
            )
        except subprocess.TimeoutExpired:
            raise DemoError(f"`fedmon node {' '.join(words)}` did not end within {COMMAND_S:g} s") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
            raise DemoError(f"`fedmon node {' '.join(words)}` ended with exit code {done.returncode}: {said}")
        document: dict[str, Any] = json_text.loads(done.stdout)
        return document


def _environment() -> dict[str, str]:
    """Return our environment without the user's settings; plans run in the best sandbox of this machine, if any."""
    from fedmon.common.settings.keys import HISTORIC

    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("FEDMON_") and name not in HISTORIC
    }
    return kept | {"FEDMON_RUNS_SANDBOX": "limits"}
