"""Whatever an approved plan does, its researcher hears a named end, the audit has it, and the next job is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.node.runs.sandbox import bubblewrap
from tests.end_to_end.bad_runs import HONEST, SECRET, Ward, ward
from tests.support.brokers import Broker
from tests.support.environment import researcher_environment
from tests.support.listener import Listener
from tests.support.node_process import CELLS
from tests.support.requirements import require
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

SEND = "def send(kind, text): os.write(6, kind + len(text).to_bytes(8, 'big') + text)\n"
FOREVER = "while True: signal.pause()"
ANSI = "\x1b]0;owned\x07\x1b[2J\u202e"
SMALL: dict[str, Any] = {"wall_s": 0.5}

# What a case does, how it ends, and a part of the reason.
CASES: dict[str, tuple[str, str, str]] = {
    "forks": ("while True: os.fork()", "process-limit", "its limit of 32"),
    "starts threads": ("while True: threading.Thread(target=signal.pause).start()", "process-limit", "its limit of 32"),
    "eats memory": ("kept = []\nwhile True: kept.append(bytearray(10**7))", "memory-limit", "its limit of 192 MiB"),
    "eats disk": (
        "with open(os.environ['TMPDIR'] + '/f', 'wb') as file:\n    while True: file.write(bytes(10**6))",
        "disk-limit",
        "its limit of 8.0 MiB",
    ),
    "opens a socket": ("socket.create_connection(('127.0.0.1', context.arguments['port']))", "failed", "Permission"),
    "resolves a name": ("socket.getaddrinfo('example.org', 80)", "failed", "socket.gaierror"),
    "reads /etc": ("return {'x': open('/etc/passwd').read()}", "failed", "Error"),
    "reads the node's keys": ("return {'x': open(context.arguments['key']).read()}", "failed", "Error"),
    "reads another dataset": ("return {'x': open(context.arguments['other']).read()}", "failed", "Error"),
    "signals the daemon": ("os.kill(context.arguments['pid'], signal.SIGKILL)", "failed", "Error"),
    "writes the dataset": ("open(context.dataset.path, 'a').write('x')", "failed", "PermissionError"),
    "removes the dataset": ("os.unlink(context.dataset.path)", "failed", "Error"),
    "never ends": ("while True: time.sleep(1)", "wall-limit", "0.5 s"),
    "computes for ever": ("while True: pass", "cpu-limit", "its limit of 0.3 s"),
    "returns NaN": ("return {'loss': float('nan')}", "invalid-result", "loss: nan"),
    "returns an instance": ("return {'model': plan}", "invalid-result", "model: a value of type Bad"),
    "returns an array of objects": (
        "import numpy\nreturn {'w': numpy.array([object()])}",
        "invalid-result",
        "w: an array of objects",
    ),
    "returns 1 GB": ("import numpy\nreturn {'w': numpy.broadcast_to(1.0, 2**27)}", "output-limit", "4.0 MiB"),
    "returns a text of 1 GB": ("return {'x': 'x' * 2**30}", "memory-limit", "its limit"),
    "returns nothing": ("pass", "invalid-result", "None instead of a mapping"),
    "raises": ("raise ValueError('CANARY')", "failed", "ValueError"),
    "raises itself": (f"raise type({ANSI!r}, (BaseException,), {{}})({ANSI!r})", "failed", "raised"),
    "exits with 3": ("sys.exit(3)", "failed", "SystemExit"),
    "ends its process with 0": ("os._exit(0)", "failed", "without a result"),
    "imports a missing package": ("import no_such_package", "failed", "the plan needs no_such_package"),
    "recurses": ("def again(): again()\nagain()", "failed", "RecursionError"),
    "leaves a thread": ("threading.Thread(target=signal.pause).start()\nreturn {}", "succeeded", ""),
    "forges NaN": (SEND + "send(b'j', b'{\"a\":NaN}')\nos._exit(0)", "invalid-result", ""),
    "closes its channel": ("os.closerange(3, 99)\nreturn {}", "failed", ""),
    "prints 20 MB": ("for _ in range(20): sys.stdout.write('x' * 10**6)\nreturn {}", "succeeded", ""),
    "reports a flood": ("for step in range(4000): context.report(step=step, x=step)\nreturn {}", "succeeded", ""),
}  # fmt: skip

WORDS: dict[str, tuple[str, str, str]] = {
    "says in a limit": (
        SEND
        + "send(b'E', json.dumps({'state': 'output-limit', 'reason': 'CANARY', 'type': ''}).encode())\nos._exit(1)",
        "output-limit",
        "",
    ),
    "says in a failure": (
        SEND + "send(b'E', json.dumps({'state': 'failed', 'reason': 'CANARY', 'type': ''}).encode())\nos._exit(1)",
        "failed",
        "",
    ),
    "says in a name": (
        SEND + "send(b'S', json.dumps({'values': {'CANARY of Jane': 1}, 't': 1}).encode())\n" + FOREVER,
        "failed",
        "",
    ),
    "says as the sandbox": ("os.write(2, b'bwrap: CANARY\\n')\nos._exit(1)", "failed", ""),
    "says in a type": ("raise type('CANARY of Jane', (Exception,), {})('CANARY')", "failed", ""),
    "says as a built-in type": (
        "raise type('CANARY_of_Jane', (Exception,), {'__module__': 'builtins'})('CANARY')",
        "failed",
        "",
    ),
    "says in a key": ("return {'CANARY': float('nan')}", "invalid-result", ""),
    "says in a log": ("context.log('CANARY', level='ERROR')\nreturn {}", "succeeded", ""),
    "prints": ("print('CANARY')\nreturn {}", "succeeded", ""),
}

OTHERS = {
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "tells its environment": "return {'x': [dict(os.environ), *map(environ, [1, os.getppid()])]}\n",
    "says escapes": (f"context.log({ANSI!r}, level='ERROR')\nprint({ANSI!r}, 'text')\nreturn {{{ANSI!r}: {ANSI!r}}}"),
    "waits": "context.report(ready=1)\n" + FOREVER,
    "reports 100 000 times": "for step in range(10**5): context.report(step=step, x=step)\nreturn {}",
    "logs 100 000 times": "for step in range(10**5): context.log('x' * 100)\nreturn {}",
}
OTHERS["tells its environment"] = (
    "def environ(pid):\n"
    "    try: return open(f'/proc/{pid}/environ').read()\n"
    "    except OSError as error: return str(error)\n" + OTHERS["tells its environment"]
)
ALL = {name: case[0] for name, case in (CASES | WORDS).items()} | OTHERS
RARER = {
    "starts threads", "returns a text of 1 GB", "returns nothing", "raises itself", "ends its process with 0",
    "recurses", "leaves a thread", "forges NaN", "closes its channel", "reports a flood",
}  # fmt: skip
"""Left to the long tests here; tests of the parts have them every time."""
LIMITS: dict[str, dict[str, float]] = {"never ends": {"wall_s": 0.5}, "computes for ever": {"cpu_s": 0.3}}


@pytest.fixture(scope="module")
def north(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """A node that confines plans as strongly as this machine can, and lets their words leave."""
    with ward(tmp_path_factory.mktemp("north") / "north", lasting_broker, ALL, job_output=True) as made:
        yield made


@pytest.fixture(scope="module")
def south(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """A node without bubblewrap, whose owner lets no words of plans leave."""
    folder = tmp_path_factory.mktemp("south") / "south"
    with ward(folder, lasting_broker, ALL, job_output=False, without_bubblewrap=True) as made:
        yield made


def known(place: Ward) -> dict[str, Any]:
    """Return what a plan would have to know of the machine to do harm."""
    other = place.folder.parent / "other.csv"
    other.write_text("CANARY,1\n")
    return {
        "pid": place.node.pid,
        "port": place.broker.port,
        "key": str(place.folder / "node.toml"),
        "other": str(other),
    }


def tried(place: Ward, name: str) -> None:
    """Have one case, and see that nothing but its end came of it."""
    _, state, part = CASES[name]

    ended = place.trial(name, tags=["cells"], args=known(place), limits=LIMITS.get(name, {}))

    place.check(ended, state, part if place.node_id == "north" else "")
    assert (place.folder / "table.csv").read_text() == CELLS
    assert "\x1b" not in ended.reason


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in RARER else ()) for name in CASES]
)
def test_a_plan_that_misbehaves_has_a_named_end(north: Ward, name: str) -> None:
    tried(north, name)


def test_words_of_a_plan_leave_in_no_disguise(south: Ward) -> None:
    # given somebody who hears all that passes the broker
    with Listener(south.broker) as listener:
        # when plans say something wherever they can
        begun = {name: south.begin(name) for name in WORDS}
        ends = {name: south.ended(handle) for name, handle in begun.items()}

        def outcomes() -> set[str]:
            told = [each.message for each in listener.heard]
            return {each["job"]["job_id"] for each in told if each["command"] == "job-outcome"}

        wait_until(lambda: len(outcomes()) == len(WORDS))
        heard = [each.message for each in listener.heard]

    # then it was not heard, and the owner can still read what they did
    for name, ended in ends.items():
        assert (name, ended.state) == (name, WORDS[name][1])
        assert south.told(ended.job_id) == [("run", ""), ("run-outcome", ended.state)]
    assert not [each for each in heard if "CANARY" in str(each)]
    assert "CANARY" in str(south.owner("run-show", job_id=ends["prints"].job_id))
    assert south.serves()


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_without_bubblewrap_it_ends_the_same(south: Ward, name: str) -> None:
    tried(south, name)


def test_a_plan_that_waits_or_stopped_itself_is_ended(north: Ward) -> None:
    # given a plan that waits, one that stops itself, and two that are to be stopped
    late = north.begin("waits", limits=SMALL)
    still = north.begin("stops itself", limits=SMALL)
    asked, rejected = north.begin("waits"), north.begin("waits")
    for handle in (asked, rejected):
        wait_until(lambda handle=handle: handle.scalars.get("north"), what="a report of the plan")  # type: ignore[misc]

    asked.stop()
    ends = [north.ended(each) for each in (late, still, asked)]

    assert [each.state for each in ends] == ["wall-limit", "wall-limit", "stopped"]
    # and when the owner takes the approval back, what still runs of the plan ends, too
    north.owner("plan-decide", plan=north.bad, status="rejected", note="no more")
    assert [north.ended(rejected).state, north.told(rejected.job_id)[1:]] == [
        "plan-rejected",
        [("run-outcome", "plan-rejected")],
    ]
    north.check(north.trial("waits"), "refused", "no more")
    north.owner("plan-decide", plan=north.bad, status="approved")


def test_a_plan_finds_nothing_of_the_launchers_environment(north: Ward, south: Ward) -> None:
    for place in (north, south):
        ended = place.trial("tells its environment")

        assert ended.state == "succeeded"
        assert SECRET not in str(ended.values)
        assert set(ended.values["x"][0]) <= {"PATH", "LANG", "HOME", "TMPDIR", "FEDMON_JOB_ID", "PWD", "LC_CTYPE"}


def test_escapes_of_a_plan_reach_no_terminal_of_its_researcher(
    north: Ward, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with north.researcher.logs(nodes=["north"], level="INFO"):
        ended = north.trial("says escapes")
        wait_until(lambda: [each for each in caplog.records if "owned" in each.getMessage()], what="the plan's log")

    shown = [each.getMessage() for each in caplog.records] + [str(ended.handle), str(ended.handle.logs("north"))]
    environ = researcher_environment(north.broker.url, tmp_path, "alice-north")
    for words in (["runs", "show", ended.job_id], ["runs", "logs", ended.job_id]):
        done = fedmon_here(*words, environ=environ)
        assert done.returncode == 0, done.stderr
        shown += [done.stdout, done.stderr]
    assert ended.values == {ANSI: ANSI}
    assert any("text" in each for each in shown)
    assert not [each for each in shown if set(each) & set(ANSI) - set("owned0;[]2J")]


def test_a_plan_that_is_never_loaded_meets_its_limit(north: Ward) -> None:
    sha256 = north.approve(HONEST + b"while True: pass\n", name="endless")

    north.check(north.run(sha256, limits=SMALL), "wall-limit", "0.5 s")


def test_bytes_in_another_encoding_are_no_plan(north: Ward) -> None:
    sha256 = north.approve(HONEST + b"# \xe9\n", name="latin")

    north.check(north.run(sha256), "failed", "it is not UTF-8 (byte ")


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["north", "south"])
@pytest.mark.parametrize("name", ["reports 100 000 times", "logs 100 000 times"])
def test_what_takes_long_ends_the_same(request: pytest.FixtureRequest, place: str, name: str) -> None:
    require(place == "south" or bubblewrap.program(), "bubblewrap is not installed")
    there: Ward = request.getfixturevalue(place)

    ended = there.ended(there.begin(name, limits={"wall_s": 60.0}), timeout_s=200.0)

    assert ended.state in {"succeeded", "wall-limit"}, ended
    there.check(ended, ended.state)
    folder = there.folder / "runs" / ended.job_id
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 64 * 2**20
