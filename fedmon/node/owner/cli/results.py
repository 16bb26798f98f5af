"""`fedmon node results` and `released`: results of runs that wait for the owner, and the ledger of those that left."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import ConflictError
from fedmon.common.files import storage_errors
from fedmon.common.text import one_line, plural, shorten, size, table
from fedmon.node.owner.cli.shell import Note, Shell, Yes, ago, fields, group, noted_table, verb

app = group("results", "See results that wait for you, and release or withhold them.", is_verb=True)

Job = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of the job, or the beginning of it as `fedmon node results` lists it.")
]
_SHOWN = 40
_WORDS = {"b": "truth", "i": "integer", "u": "integer", "f": "float", "c": "complex number", "S": "text", "U": "text"}


@verb(app)
@verb(app, "list")
def results(shell: Shell) -> None:
    """List held results, oldest first, with the rules that hold them."""
    shell.show("result-list", lambda found: _list(found["results"]) if found["results"] else "No result waits for you.")


@verb(app, "show")
def show(shell: Shell, job_id: Job) -> None:
    """Show a held result: the rule, and the data that would leave.

    Of each entry you see the kind, the range and the first values; counts below 10 are marked, since they may be about
    single persons.
    """
    document = _looked_at(shell, job_id)
    shell.emit(document, lambda: _screen(document))


@verb(app, "release")
def release(shell: Shell, job_id: Job, note: Note = "", yes: Yes = False) -> None:
    """Let a held result leave: exactly the bytes that you saw.

    At a terminal you see the data that leaves and are asked. Without one, give the whole id, or --yes.
    """
    document = _looked_at(shell, job_id)
    found, sha256 = document["result"]["job_id"], document["result"]["result"]["sha256"]
    shell.confirm(_screen(document), "Let exactly this leave?", is_exact=job_id == found, what=f"job {found}", yes=yes)
    shell.show("result-decide", _decided, job_id=found, release=True, sha256=sha256, note=note)


@verb(app, "withhold")
def withhold(shell: Shell, job_id: Job, note: Note = "") -> None:
    """Keep a held result here; its researcher gets your note."""
    shell.show("result-decide", _decided, job_id=job_id, release=False, note=note)


def released(shell: Shell) -> None:
    """Show how much left of runs, by month, researcher and dataset."""
    shell.show("released", lambda found: _ledger(found["released"]) if found["released"] else "No result has left yet.")


def _looked_at(shell: Shell, job_id: str) -> dict[str, Any]:
    """Return a held result with its entries. Raises ConflictError if its file is not the checked one."""
    from fedmon.node.runs.release import described

    document = shell.call("result-show", job_id=job_id)
    result, path = document["result"], Path(document["file"])
    with storage_errors(path, "read the held result"):
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != result["result"]["sha256"]:
        raise ConflictError(f"{path} is not the result that the plan returned: withhold it, and look at the machine")
    document["entries"] = described(result["format"], memoryview(content))
    return document


def _list(held: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            each["job_id"],
            each["researcher_id"],
            one_line(each["name"]),
            each["numbers"],
            size(each["result"]["bytes"]),
            ago(each["ended"]),
            _rules(each),
        ]
        for each in held
    ]
    shown = noted_table(["researcher", "plan", "numbers", "size", "since"], rows)
    return f"{shown}\n\nLook at one: fedmon node results show JOB"


def _rules(result: Mapping[str, Any]) -> str:
    """Return the rules that hold a result, without the words for its researcher."""
    from fedmon.node.runs.release import HELD

    return one_line(result["reason"].removesuffix(f": {HELD}"))


def _screen(document: Mapping[str, Any]) -> str:
    result = document["result"]
    shown = {
        "job": result["job_id"],
        "held": _rules(result),
        "researcher": result["researcher_id"],
        "plan": f"{one_line(result['name'])}, SHA-256 {result['sha256']}",
        "dataset": ", ".join(filter(None, [document.get("dataset"), result["dataset_id"]])) or "none",
        "result": f"{result['result']['bytes']} bytes, {plural(result['numbers'], 'number')}",
        "sha256": result["result"]["sha256"],
        "file": document["file"],
    }
    rows = [
        [one_line(each["place"]), in_words(each["kind"]), each["count"], _range(each), _first(each)]
        for each in document["entries"]
    ]
    # Entries first: of many of them, the rule stays above the question.
    return "\n\n".join([table(["entry", "kind", "count", "range", "first values"], rows, fold=True), fields(shown)])


def in_words(kind: str) -> str:
    """Return the kind of an entry in words: "array of 4 x 2 floats" for numpy's "array 4 x 2 of f8"."""
    shape, _, dtype = kind.removeprefix("array ").rpartition(" of ")
    if not shape:
        return kind
    return f"array {shape} {_WORDS[dtype[0]]}" if shape == "of one" else f"array of {shape} {_WORDS[dtype[0]]}s"


def _range(entry: Mapping[str, Any]) -> str:
    if entry["least"] is None:
        return "-"
    few = f", {entry['small']} BELOW 10" if entry["small"] else ""
    return f"{entry['least']:.6g} ... {entry['most']:.6g}{few}"


def _first(entry: Mapping[str, Any]) -> str:
    more = ", ..." if entry["count"] > len(entry["first"]) else ""
    return shorten(one_line(msgspec.json.encode(entry["first"]).decode()[1:-1] + more), _SHOWN)


def _decided(document: Mapping[str, Any]) -> str:
    result, note = document["result"], document["note"]
    when = "" if document["sent"] else " when the node runs again"
    done = f"leaves{when}" if document["released"] else f"stays here; its researcher is told{when}"
    return f"The result of job {result['job_id']} {done}.{f' Note: {one_line(note)}' if note else ''}"


def _ledger(rows: Sequence[Mapping[str, Any]]) -> str:
    named = [{**row, "dataset": row.get("dataset") or row["dataset_id"] or "none"} for row in rows]
    keys = ("month", "researcher_id", "dataset", "results", "size_bytes", "numbers", "scalars")
    heads = ("month", "researcher", "dataset", "results", "bytes", "numbers", "reports")
    return table(heads, [[row[key] for key in keys] for row in named])
