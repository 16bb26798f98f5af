"""What of a job leaves its node, and that it always fits into a message."""

from __future__ import annotations

import msgspec
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.wire.codec import MAX_PAYLOAD_BYTES
from fedmon.common.wire.runs import JobOutcome, JobReport, JobState, Parcel, Problem, TracePiece
from fedmon.node.runs import outcome, status
from fedmon.node.runs.outcome import leaving
from fedmon.node.runs.register import ReleaseDecision

LONGEST = "\x1b" * 16_384


def job(state: JobState, reason: str = "", problem: Problem | None = None) -> JobReport:
    return JobReport(job_id="j", state=state, reason=reason, problem=problem, sha256="0" * 64, created=utc_now())


@pytest.mark.parametrize(
    ("kind", "leaves"),
    [
        ("ValueError", "ValueError"),
        ("numpy.linalg.LinAlgError", "numpy.linalg.LinAlgError"),
        ("InvalidInputError", "InvalidInputError"),
        ("patient 17 has it", "Exception"),
        ("PATIENT_17_has_it", "Exception"),
        ("builtins.PATIENT_17", "Exception"),
        ("numpy.PATIENT_17", "Exception"),
        ("fedmon.PATIENT_17", "Exception"),
        ("P" * 101, "Exception"),
        ("Patient\n17", "Exception"),
    ],
)
def test_of_an_error_its_type_leaves_and_nothing_that_only_looks_like_one(kind: str, leaves: str) -> None:
    said = job(JobState.FAILED, "SECRET", Problem(type=kind, message="SECRET", traceback="SECRET"))

    told = leaving(said, output_leaves=False)

    assert told.problem == Problem(type=leaves)
    assert "SECRET" not in msgspec.json.encode(told).decode()
    assert "job_output" in told.reason
    assert leaving(said, output_leaves=True) == said


@pytest.mark.parametrize("output_leaves", [True, False])
def test_paths_of_the_node_are_told_to_nobody(output_leaves: bool) -> None:
    reason = (
        "the sandbox could not be set up: [Errno 2] no '/srv/patients/scans.csv' (see http://127.0.0.1:8000/files/x)"
    )

    told = leaving(job(JobState.NOT_STARTED, reason), output_leaves=output_leaves)

    assert "patients" not in told.reason
    assert "http://127.0.0.1:8000/files/x" in told.reason


def test_reasons_of_the_node_itself_leave() -> None:
    for state in (JobState.WALL_LIMIT, JobState.STOPPED, JobState.FAILED):
        assert leaving(job(state, "after 5 s"), output_leaves=False).reason == "after 5 s"


def test_the_longest_texts_and_a_result_fit_into_a_message() -> None:
    problem = Problem(type="E", message=LONGEST, traceback=LONGEST)
    parcel = Parcel(format="json", sha256="0" * 64, size_bytes=1, json="x" * (outcome.INLINE_BYTES - 200))
    envelope = {"node_id": "n" * 64, "researcher_id": "r" * 64, "id": "i" * 256, "boot": 2**62}
    traced = Problem(type="E", traceback=LONGEST)
    for each, result in (
        (job(JobState.FAILED, LONGEST, problem), None),
        (job(JobState.FAILED, "short", traced), None),
        (job(JobState.SUCCEEDED, ReleaseDecision(released=True, by="o", note=LONGEST[:1_000]).reason), parcel),
    ):
        told = JobOutcome(job=leaving(each, output_leaves=True), result=result, **envelope)  # type: ignore[arg-type]

        assert len(msgspec.json.encode(told)) <= MAX_PAYLOAD_BYTES


def test_a_piece_of_a_trace_fits_however_it_is_written() -> None:
    printed = "\x1b" * 100_000

    def read(offset: int, most: int) -> TracePiece:
        text = printed[offset : offset + most]
        return TracePiece(offset=offset, text=text, next_offset=offset + len(text), size_bytes=len(printed))

    piece = status.piece(read, 10, 20_000)

    assert len(msgspec.json.encode(piece)) <= 20_000
    assert len(piece.text) > 1_000
    assert piece.next_offset == 10 + len(piece.text)
