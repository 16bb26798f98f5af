"""Plans that try to carry a row out of a node whose gate checks: the row stays, and what else leaves is counted.

Each plan has the row as ``text`` and ``numbers``, and ``bits`` of both. Those with a ``channel`` show that some bits
leave; docs/security.md says how many at most.
"""

from __future__ import annotations

import base64
import codecs
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from fedmon.common.wire.runs import JobStatus
from fedmon.node.runs.release import rounded
from tests.node.runs.kept_jobs import plan_of
from tests.node.runs.run_desks import MANY_JOBS, Bench, bench
from tests.support.envelopes import envelope

TEXT = "Zoe Quill born 1931-07-19 lives at 47 Xylophone Mews; HIV positive; sister of Quentin Quill of Oxton"
NUMBERS = [round(700_411.25 + 1_234.5 * place**3, 2) for place in range(12)]
ROWS, AT_ONCE = 100, 4
SECURITY = Path(__file__).parents[3] / "docs/security.md"
HEAD = """
row = list(context.dataset.rows())[17]
text, numbers = row["note"], [float(row[f"n{place}"]) for place in range(12)]
data = text.encode()
bits = [byte >> place & 1 for byte in data for place in range(8)]
"""


class Canary(NamedTuple):
    body: str
    state: str = "held"
    channel: str = ""


CANARIES = {
    # through the result
    "row": Canary("return {'row': row}"),
    "numbers": Canary("return {'numbers': numbers}"),
    "numbers as names": Canary("return {str(number): 0 for number in numbers}"),
    "complex": Canary("return {'numbers': np.array(numbers[:6]) + 1j * np.array(numbers[6:])}"),
    "bytes": Canary("return {'numbers': np.frombuffer(data, dtype='u1')}"),
    "nulls": Canary("return {'numbers': [None if bit else 0 for bit in bits]}"),
    "empty containers": Canary("return {'numbers': [[] if bit else {} for bit in bits]}"),
    "lengths of lists": Canary("return {'numbers': [[0] * byte for byte in data]}"),
    "depths of lists": Canary(
        """
        def deep(depth):
            return [deep(depth - 1)] if depth else 0
        return {'numbers': [deep(byte % 16) for byte in data]}
        """
    ),
    "large integers": Canary("return {str(at): int.from_bytes(data[at:at + 8]) for at in range(0, len(data), 8)}"),
    "shapes of nothing": Canary(
        "return {'numbers': [np.zeros((0, *(1 + byte for byte in data[at:at + 7]))) for at in range(0, len(data), 7)]}"
    ),
    "payloads of NaN": Canary(
        """
        words = [int.from_bytes(data[at:at + 6]) | 0x7FF8 << 48 for at in range(0, 60, 6)]
        return {'numbers': np.array(words, dtype='u8').view('f8')}
        """,
        "succeeded",
    ),
    "last digits": Canary("return {'numbers': [1 + byte * 1e-12 for byte in data[:10]]}", "succeeded"),
    "last digits of an array": Canary(
        "return {'numbers': 1 + np.frombuffer(data[:10], dtype='u1') * 1e-12}", "succeeded"
    ),
    "spelling": Canary(
        """
        said = b'{"rows":' + bytes(9 if bit else 32 for bit in bits) + b'1.0}'
        os.write(6, b'j' + len(said).to_bytes(8, 'big') + said)
        os._exit(0)
        """,
        "succeeded",
    ),
    "too large": Canary("return {'numbers': np.resize(np.array(numbers), 200_000)}"),
    "a frame that is too long": Canary("os.write(6, b'j' + b'\\0' + data[:7])\ntime.sleep(60)", "output-limit"),
    "a frame of an unknown kind": Canary("os.write(6, data)\ntime.sleep(60)", "failed"),
    "a report that is too long": Canary("os.write(6, b'S\\0' + data[:7])\ntime.sleep(60)", "failed"),
    "a result that cannot travel": Canary("return {'rows': {text: object()}}", "invalid-result"),
    # through texts
    "text": Canary("return {'rows': text}"),
    "text in base64": Canary("return {'rows': base64.b64encode(data).decode()}"),
    "array of texts": Canary("return {'rows': np.array([text])}"),
    "array of bytes": Canary("return {'rows': np.array([data[at:at + 10] for at in range(0, len(data), 10)])}"),
    "names in each other": Canary("return {text[:60]: {text[60:]: 1}}"),
    "names in hexadecimal": Canary("return {'x' + data[at:at + 15].hex(): 0 for at in range(0, len(data), 15)}"),
    "what it prints": Canary("print(text, numbers)\nprint(text, file=sys.stderr)\nreturn {}", "succeeded"),
    "what it logs": Canary("context.log(text, level='CRITICAL')\nreturn {}", "succeeded"),
    # through names and values of scalars
    "names of scalars": Canary(
        """
        for at in range(0, len(data), 20):
            context.report(**{'x' + data[at:at + 20].hex(): 1})
        return {}
        """,
        "succeeded",
    ),
    "values of other scalars": Canary("context.report(rows=numbers[0])\nreturn {}", "succeeded"),
    "many values of a scalar": Canary(
        """
        for number in [0.0, *numbers]:
            context.report(loss=number)
        return {}
        """,
        "succeeded",
        "a scalar",  # one value a second
    ),
    "how many scalars": Canary(
        """
        for _ in range(data[0]):
            context.report(rows=1)
        return {}
        """,
        "succeeded",
    ),
    "one value of a scalar": Canary("context.report(loss=numbers[0])\nreturn {}", "succeeded", "a scalar"),
    "the step of a scalar": Canary(
        "context.report(step=int.from_bytes(data[:6]), loss=0)\nreturn {}", "succeeded", "a scalar"
    ),
    # through types of errors
    "the text of an exit": Canary("sys.exit(text)", "failed"),
    "a type that is built in": Canary(
        "raise [KeyError, ValueError][bits[0]]()", "failed", "the type of an error"
    ),
    # through exit codes and timing
    "an exit code": Canary("os._exit(data[0])", "failed", "the exit code"),
    "a signal": Canary("os.kill(os.getpid(), 15 if bits[0] else 9)", "failed", "the exit code"),
    "how long it takes": Canary("time.sleep(data[0] / 1000)\nreturn {}", "succeeded", "the time that it takes"),
    "how much it computes": Canary(
        "sum(range(data[0] * 10_000))\nreturn {}", "succeeded", "the time that it takes"
    ),
    "how much memory it takes": Canary("np.ones(data[0] * 10_000)\nreturn {}", "succeeded", "the peak of its memory"),
    # what the rules let pass
    "some of the numbers": Canary("return {'numbers': numbers[:10]}", "succeeded", "the numbers of a result"),
    "some of the text": Canary("return {'rows': text[:60]}", "succeeded", "the numbers of a result"),
}  # fmt: skip


class Site(NamedTuple):
    node: Bench
    jobs: dict[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node that checks what leaves, and all plans at work there."""
    folder = tmp_path_factory.mktemp("canaries") / "n"
    names = ",".join(["note", *(f"n{place}" for place in range(12))])
    cells = [",".join([f"patient {at}", *(["1.5"] * 12)]) for at in range(ROWS)]
    cells[17] = ",".join([TEXT, *map(str, NUMBERS)])
    with bench(folder, runs=MANY_JOBS, release={"mode": "check"}) as node:
        dataset_id = node.offer("patients", table="\n".join([names, *cells]) + "\n")
        site = Site(node, {})
        for name, canary in CANARIES.items():
            body = HEAD + textwrap.dedent(canary.body)
            source = plan_of(body, imports="array, base64, os, signal, sys, time, numpy as np")
            node.approve(source, scalars=("loss",))
            site.jobs[name] = node.begin(source, dataset_id)
            node.wait(lambda: node.runs.running < AT_ONCE, what=f"the end of {name}")
        yield site


def left(site: Site, name: str) -> tuple[dict[str, Any], str]:
    """Return what was said first about the end of a canary, and all that left of it, also when asked for."""
    job_id = site.jobs[name]
    told = site.node.over(job_id)
    status = JobStatus(job_id=job_id, result=True, scalars_from=0, stdout_from=0, stderr_from=0, **envelope())
    said = [msgspec.json.encode(site.node.ask(status)).decode()]
    for message in (msgspec.json.decode(each.payload) for each in site.node.sent if job_id.encode() in each.payload):
        scalars = [each for each in message.get("scalars", []) if each.get("job_id") == job_id]
        said.append(msgspec.json.encode(scalars if message["command"] == "run-scalars" else message).decode())
    if told["result"] and told["result"]["base64"]:
        said.append(base64.b64decode(told["result"]["base64"]).decode("latin-1"))
    return told, "\n".join(said)


def needles() -> set[str]:
    """Return what of the row would be found if it left: pieces of its text in many spellings, and its numbers."""
    data = TEXT.encode()
    spelled = [TEXT, TEXT[::-1], data.hex(), base64.b64encode(data).decode(), codecs.encode(TEXT, "rot13")]
    pieces = {text[at : at + 12] for text in spelled for at in range(len(text) - 11)}
    return pieces | {str(number) for number in (*NUMBERS, *map(rounded, NUMBERS))}


@pytest.mark.parametrize("name", CANARIES)
def test_no_canary_carries_the_row_out(name: str, site: Site) -> None:
    canary = CANARIES[name]

    told, found = left(site, name)

    assert told["job"]["state"] == canary.state, told["job"]
    assert (told["result"] is None) == (canary.state != "succeeded")
    if canary.channel:
        assert f"| {canary.channel} |" in SECURITY.read_text()
        # Not the whole row, through whatever channel.
        assert TEXT not in found
        assert sum(str(rounded(number)) in found for number in NUMBERS) <= ROWS // 10
    else:
        assert sorted(each for each in needles() if each in found) == []


def test_what_leaves_of_a_canary_that_succeeds_is_the_same_whatever_the_row_says(site: Site) -> None:
    results = {
        name: left(site, name)[0]["result"]["json"]
        for name in ("last digits", "spelling", "what it prints", "what it logs", "many values of a scalar")
    }

    assert results == {
        "last digits": '{"numbers":[1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0]}',
        "spelling": '{"rows":1.0}',
        "what it prints": "{}",
        "what it logs": "{}",
        "many values of a scalar": "{}",
    }


def test_no_number_of_a_plan_is_in_the_reason_of_its_end(site: Site) -> None:
    for name in ("a frame that is too long", "a frame of an unknown kind", "a report that is too long"):
        told = left(site, name)[0]
        size = int.from_bytes(b"\0" + TEXT.encode()[:7], "big")

        assert str(size) not in told["job"]["reason"]
