"""Every line of the audit proves the one before it; what was altered, taken out or moved is named."""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.errors import StorageError
from fedmon.node.requests.audit import COUNT_PERIOD_S, MAX_COUNTED_NAMES, OTHER_NAMES, Audit, chain_files, verify
from tests.support.full_disk import files_of_at_most


def _written(folder: Path, lines: int = 30, *, rotate_bytes: int = 1_500) -> Path:
    folder.mkdir()
    with Audit(folder, rotate_bytes=rotate_bytes) as audit:
        for number in range(lines):
            audit.record("request", researcher_id="r", number=number)
    return folder


def _raw_lines(folder: Path) -> list[bytes]:
    return [line for path in chain_files(folder) for line in path.read_bytes().splitlines(keepends=True)]


def _lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in _raw_lines(folder)]


def _position(folder: Path, number: int) -> tuple[Path, int]:
    """Return the file and the index in it of the line with this number."""
    for path in chain_files(folder):
        count = len(path.read_bytes().splitlines())
        if number <= count:
            return path, number - 1
        number -= count
    raise AssertionError(number)


def test_a_line_holds_its_number_time_event_facts_and_the_hash_of_the_line_before(tmp_path: Path) -> None:
    with Audit(tmp_path) as audit:
        first = audit.record("request", researcher_id="r", command="ping")
        second = audit.record("plan-decision", status="approved")

    lines = _lines(tmp_path)
    assert (first, second) == (1, 2)
    assert [list(line) for line in lines] == [
        ["n", "time", "event", "researcher_id", "command", "prev", "hash"],
        ["n", "time", "event", "status", "prev", "hash"],
    ]
    assert lines[0]["prev"] == "0" * 64
    assert lines[1]["prev"] == lines[0]["hash"]
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


def test_an_untouched_audit_is_good_across_restarts_and_rotations(tmp_path: Path) -> None:
    for number in range(5):
        with Audit(tmp_path, rotate_bytes=1_000) as audit:
            for _ in range(7):
                audit.record("request", run=number)

    result = verify(tmp_path)

    names = [path.name for path in chain_files(tmp_path)]
    assert (result.ok, result.lines, result.files, result.notes) == (True, 35, len(names), ())
    assert names == [*sorted(names[:-1]), "audit.jsonl"]
    assert len(names) > 5
    assert [line["n"] for line in _lines(tmp_path)] == list(range(1, 36))


def test_one_record_is_one_printable_line_whatever_the_facts_hold(tmp_path: Path) -> None:
    nasty = ["\x1b[31m", "a\nb\r\u2028c", "\u202eabc", "\x00\x7f\x9b", "\udc80\ud800", "é漢\U0001f600", '"\\,"hash":"']
    with Audit(tmp_path) as audit:
        for text in nasty:
            audit.record(text, fact=text, **{text: [text]})

    raw = (tmp_path / "audit.jsonl").read_bytes()
    assert set(raw) <= {10, *range(32, 127)}
    assert raw.count(b"\n") == len(nasty)
    nasty[nasty.index("\udc80\ud800")] = r"\udc80\ud800"
    assert [line["fact"] for line in _lines(tmp_path)] == nasty
    assert verify(tmp_path).ok


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written(tmp_path_factory.mktemp("chain") / "audit")


@settings(max_examples=150)
@given(number=st.integers(1, 30), at=st.integers(0, 10_000), bits=st.integers(1, 255))
def test_any_altered_byte_names_its_line(chain: Path, number: int, at: int, bits: int) -> None:
    path, index = _position(chain, number)
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    line = bytearray(lines[index])
    line[at % len(line)] ^= bits
    path.write_bytes(b"".join([*lines[:index], bytes(line), *lines[index + 1 :]]))

    try:
        bad = verify(chain).first_bad
    finally:
        path.write_bytes(content)

    assert bad is not None
    assert (bad.file, bad.line, bad.n) == (path.name, index + 1, number)


@settings(max_examples=60)
@given(st.data())
def test_any_line_taken_out_moved_or_repeated_is_named(chain: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = Path(shutil.copytree(chain, tmp_path / "copy", dirs_exist_ok=True))
    lines = _raw_lines(folder)
    kind = data.draw(st.sampled_from(["take out", "swap", "repeat"]))
    index = data.draw(st.integers(0, 28))
    other = data.draw(st.integers(index + 1, 29))
    if kind == "take out":
        del lines[index:other]
    elif kind == "swap":
        lines[index], lines[other] = lines[other], lines[index]
    else:
        lines.insert(other, lines[index])
    for path in chain_files(folder):
        path.unlink()
    (folder / "audit.jsonl").write_bytes(b"".join(lines))

    bad = verify(folder).first_bad

    assert bad is not None
    assert bad.line == (other if kind == "repeat" else index) + 1
    assert bad.n == bad.line


@pytest.mark.parametrize("taken", [0, 1, -1])
def test_a_file_that_was_taken_away_is_missed(chain: Path, tmp_path: Path, taken: int) -> None:
    folder = Path(shutil.copytree(chain, tmp_path / "copy"))
    chain_files(folder)[taken].unlink()

    bad = verify(folder).first_bad

    assert bad is not None
    assert "missing" in bad.why


def test_a_line_with_a_fitting_hash_and_a_number_that_there_is_not_is_named(tmp_path: Path) -> None:
    folder = _written(tmp_path / "audit", 3)
    body = json.dumps({"n": 0, "time": "", "event": "request", "prev": "0" * 64}).encode()
    line = b'%b,"hash":"%b"}\n' % (body[:-1], hashlib.sha256(body).hexdigest().encode())
    (folder / "audit.jsonl").write_bytes(line + (folder / "audit.jsonl").read_bytes())

    assert str(verify(folder).first_bad).startswith("audit.jsonl line 1 (number 1): altered or cut off")


def test_a_full_file_never_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    # given an audit whose newest file was put back from a backup, so that it begins as an earlier one
    _written(tmp_path / "audit", 3, rotate_bytes=10**6)
    backup = (tmp_path / "audit" / "audit.jsonl").read_bytes()
    rotated = tmp_path / "audit" / f"audit-{1:015d}.jsonl"
    with Audit(tmp_path / "audit", rotate_bytes=1) as audit:
        audit.record("newer")
    (tmp_path / "audit" / "audit.jsonl").write_bytes(backup)
    before = rotated.read_bytes()

    with pytest.raises(StorageError, match=f"{rotated.name} exists already"):
        Audit(tmp_path / "audit", rotate_bytes=1)

    assert rotated.read_bytes() == before


def test_an_audit_that_is_no_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()

    with pytest.raises(StorageError, match=r"cannot write .*/audit\.jsonl: Is a directory"):
        Audit(tmp_path)
    with pytest.raises(StorageError, match=r"cannot read the audit in .*: Is a directory"):
        verify(tmp_path)


def test_a_line_written_anew_with_a_fitting_hash_is_named(tmp_path: Path) -> None:
    _written(tmp_path / "audit", 10, rotate_bytes=10**6)
    shutil.copytree(tmp_path / "audit", tmp_path / "forged")
    lines = _raw_lines(tmp_path / "forged")
    (tmp_path / "forged" / "audit.jsonl").write_bytes(b"".join(lines[:6]))
    (tmp_path / "forged" / "audit.head").unlink()
    with Audit(tmp_path / "forged") as audit:
        audit.record("request", researcher_id="somebody else", number=6)
    forged = _raw_lines(tmp_path / "forged")[6]

    (tmp_path / "audit" / "audit.jsonl").write_bytes(b"".join([*lines[:6], forged, *lines[7:]]))
    bad = verify(tmp_path / "audit").first_bad

    assert bad is not None
    assert (bad.line, "rewritten" in bad.why) == (8, True)


def test_an_end_written_anew_is_named_and_stays_named_after_the_next_start(tmp_path: Path) -> None:
    folder = _written(tmp_path / "audit", 10, rotate_bytes=10**6)
    head = (folder / "audit.head").read_bytes()
    (folder / "audit.jsonl").write_bytes(b"".join(_raw_lines(folder)[:8]))
    (folder / "audit.head").unlink()
    with Audit(folder) as audit:
        audit.record("request", researcher_id="r", number=8)
        audit.record("request", researcher_id="r", number=99)
    (folder / "audit.head").write_bytes(head)

    before = verify(folder).first_bad
    with Audit(folder) as audit:
        audit.record("request")
    after = verify(folder).first_bad

    assert before is not None
    assert (before.line, "another line had been synced" in before.why) == (10, True)
    assert after is not None
    assert (after.line, "rewritten" in after.why) == (11, True)


def test_lines_that_are_missing_at_the_start_are_noted_and_stay_noted(tmp_path: Path) -> None:
    folder = _written(tmp_path / "audit", 10, rotate_bytes=10**6)
    (folder / "audit.jsonl").write_bytes(b"".join(_raw_lines(folder)[:8]))

    missed = str(verify(folder).first_bad)
    with Audit(folder) as audit:
        audit.record("request")

    assert missed == "audit.jsonl line 9 (number 9): missing: lines up to number 10 had been synced to the disk"
    noted = _lines(folder)[8]
    assert (noted["n"], noted["event"], noted["first_missing"], noted["last_missing"]) == (11, "audit-broken", 9, 10)
    assert str(verify(folder).first_bad).startswith("audit.jsonl line 9 (number 9): number 11 does not continue")


@pytest.mark.parametrize("torn", [b'{"n":31,"time":"2026', b"\0" * 5000, b"x"])
def test_half_a_line_of_a_crash_is_cut_off_and_the_chain_goes_on(tmp_path: Path, torn: bytes) -> None:
    folder = _written(tmp_path / "audit", 30)
    with (folder / "audit.jsonl").open("ab") as file:
        file.write(torn)

    seen = verify(folder)
    with Audit(folder) as audit:
        audit.record("request")

    event = _lines(folder)[30]
    result = verify(folder)
    assert (seen.ok, seen.lines) == (True, 30)
    assert seen.notes == ("audit.jsonl ends in half a line: it is being written, or a crash cut it off",)
    assert (event["event"], event["size_bytes"]) == ("audit-torn-line", len(torn))
    assert (result.ok, result.lines, result.notes) == (True, 32, ())


def test_without_its_head_an_audit_says_what_it_cannot_tell(tmp_path: Path) -> None:
    folder = _written(tmp_path / "audit")
    (folder / "audit.head").write_bytes(b"\0\0")

    result = verify(folder)

    assert (result.ok, result.notes) == (
        True,
        ("audit.head is missing or damaged: lines may have been cut off the end",),
    )


def test_metrics_and_logs_are_counted_and_written_once_an_hour_and_at_the_end(tmp_path: Path) -> None:
    now = 0.0
    with Audit(tmp_path, clock=lambda: now) as audit:
        audit.count("metrics", ["host_cpu_busy_ratio", "host_memory_used_bytes"], 10)
        audit.count("logs", ["WARNING"])
        now = COUNT_PERIOD_S - 1
        audit.record("request")
        now = COUNT_PERIOD_S
        audit.count("metrics", ["host_cpu_busy_ratio"])
        audit.count("metrics", ["host_cpu_busy_ratio"], 2)
        audit.record("request")

    lines = _lines(tmp_path)
    assert [line["event"] for line in lines] == ["request", "hourly-counts", "request", "hourly-counts"]
    assert lines[1]["counts"] == {
        "logs": {"WARNING": 1},
        "metrics": {"host_cpu_busy_ratio": 11, "host_memory_used_bytes": 10},
    }
    assert lines[3]["counts"] == {"metrics": {"host_cpu_busy_ratio": 2}}


def test_a_line_about_a_table_of_very_many_columns_is_good(tmp_path: Path) -> None:
    with Audit(tmp_path) as audit:
        audit.record("dataset-add", names="x" * 20_000_000)
        audit.record("after")

    assert verify(tmp_path).ok


def test_no_number_of_names_makes_a_counted_hour_large(tmp_path: Path) -> None:
    with Audit(tmp_path) as audit:
        audit.count("metrics", (f"name_{number}" for number in range(MAX_COUNTED_NAMES + 500)))

    counts = _lines(tmp_path)[0]["counts"]
    assert isinstance(counts, dict)
    assert (len(counts["metrics"]), counts["metrics"][OTHER_NAMES]) == (MAX_COUNTED_NAMES + 1, 500)


def test_an_audit_to_which_nothing_was_added_needs_no_room_on_the_disk(tmp_path: Path) -> None:
    folder = _written(tmp_path / "a", 3)

    with files_of_at_most(0), Audit(folder) as audit:
        audit.sync()

    assert verify(folder).ok


def test_a_full_disk_refuses_the_line_whole_and_the_chain_goes_on(tmp_path: Path) -> None:
    with Audit(tmp_path) as audit:
        audit.record("before")
        with files_of_at_most(600), pytest.raises(StorageError, match=f"^cannot write {tmp_path}/audit.jsonl: "):
            audit.record("decision", note="x" * 1000)
        audit.record("after")

    assert [line["event"] for line in _lines(tmp_path)] == ["before", "after"]
    assert verify(tmp_path).ok


def test_threads_write_whole_lines_into_one_chain_while_another_process_reads(tmp_path: Path) -> None:
    results: list[bool] = []
    with Audit(tmp_path, rotate_bytes=30_000) as audit:

        def write(name: str) -> None:
            for number in range(400):
                audit.record("request", name=name, number=number, text="x" * (number % 50))
                audit.count("logs", [name])

        with ThreadPoolExecutor(4, initializer=threading.Barrier(4).wait) as threads:
            writing = [threads.submit(write, name) for name in "abcd"]
            while not (results and all(each.done() for each in writing)):
                results.append(verify(tmp_path).ok)
        assert [each.exception() for each in writing] == [None] * 4

    lines = _lines(tmp_path)
    assert [[line["number"] for line in lines if line.get("name") == name] for name in "abcd"] == [list(range(400))] * 4
    assert verify(tmp_path).ok
    assert results
    assert all(results)


def test_a_line_costs_little(tmp_path: Path) -> None:
    with Audit(tmp_path) as audit:
        audit.record("request")
        best = float("inf")
        for _ in range(20):
            start = time.thread_time()
            for number in range(100):
                audit.record("request", researcher_id="researcher", command="ping", id="018f", sequence=number)
            best = min(best, (time.thread_time() - start) / 100)

    assert best < 40e-6


def test_a_crash_in_the_middle_of_a_rotation_loses_nothing(tmp_path: Path) -> None:
    folder = _written(tmp_path / "audit", 10, rotate_bytes=10**6)
    (folder / "audit.jsonl").rename(folder / "audit-000000000000001.jsonl")

    with Audit(folder) as audit:
        audit.record("request")

    result = verify(folder)
    assert (result.ok, result.files, result.lines) == (True, 2, 11)


@pytest.mark.parametrize("kept_from", [2, 7, 16, 29])
def test_pruned_lines_are_not_missed_wherever_the_cut_lies(tmp_path: Path, kept_from: int) -> None:
    folder = _written(tmp_path / "a")
    before = datetime.datetime.fromisoformat(str(_lines(folder)[kept_from - 1]["time"]))
    with Audit(folder, rotate_bytes=1_500) as audit:
        pruned = audit.prune(before, by="eve")
        again = audit.prune(before, by="eve")
        audit.record("later")

    result = verify(folder)

    assert (pruned, again) == (kept_from - 1, 0)
    assert (result.ok, result.lines) == (True, 30 - pruned + 2)
    assert [line["n"] for line in _lines(folder)] == list(range(kept_from, 33))


def test_a_pruning_that_could_make_no_new_file_is_done_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _written(tmp_path / "a", 10, rotate_bytes=10**6)
    before = datetime.datetime.fromisoformat(str(_lines(folder)[6]["time"]))

    def full(_path: Path) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Audit(folder) as audit:
        with monkeypatch.context() as patched:
            patched.setattr("fedmon.node.requests.audit._opened", full)
            with pytest.raises(StorageError, match=r"jsonl: No space left on device; make space and try again$"):
                audit.prune(before, by="eve")
        audit.record("later")
        audit.prune(before, by="eve")
        audit.record("last")

    assert verify(folder).ok
    assert [line["n"] for line in _lines(folder)] == list(range(7, 15))


def test_lines_taken_out_under_a_made_up_stub_are_missed(tmp_path: Path) -> None:
    folder = _written(tmp_path / "a", 10, rotate_bytes=10_000)
    raw = _raw_lines(folder)
    last = json.loads(raw[3])
    (folder / "audit.jsonl").write_bytes(b"".join(raw[4:]))

    without = verify(folder).first_bad
    (folder / "audit.stub").write_text(json.dumps({"n": 4, "hash": last["hash"]}))
    made_up = verify(folder).first_bad

    assert without is not None
    assert "missing" in without.why
    assert made_up is not None
    assert (made_up.file, "no line says" in made_up.why) == ("audit.stub", True)


def test_a_pruning_that_a_crash_interrupted_is_made_good_by_the_next_start(tmp_path: Path) -> None:
    folder = _written(tmp_path / "a", 20, rotate_bytes=1_500)
    before = datetime.datetime.fromisoformat(str(_lines(folder)[11]["time"]))
    left = tmp_path / "left"
    shutil.copytree(folder, left)
    with Audit(folder, rotate_bytes=1_500) as audit:
        audit.prune(before, by="eve")
    # The stub and the line that vouches for it are written first: the old files are as they were then.
    for name in ("audit.stub", "audit.head"):
        shutil.copy(folder / name, left / name)
    with (left / "audit.jsonl").open("ab") as file:
        file.write(_raw_lines(folder)[-1])

    interrupted = verify(left)
    Audit(left, rotate_bytes=1_500).close()

    assert (interrupted.ok, verify(left).ok) == (True, True)
    assert _raw_lines(left) == _raw_lines(folder)
