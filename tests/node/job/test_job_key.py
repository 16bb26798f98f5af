"""The names of jobs in streams, topics and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.ids import RESERVED_IDS, checked_id
from fedmon.node.job.identity import identify, job_key

HOSTILE = [
    "", " ", ".", "..", "../..", "../../etc/passwd", "/etc/passwd", "/", "//", "a/b", "a\\b", "~root", "~", "$HOME",
    "$(touch pwned)", "`touch pwned`", "; touch pwned", "| touch pwned", "&& touch pwned", "> pwned", "a\nb", "a\rb",
    "a\tb", "a\0b", "\x1b[2J", "#", "+", "a/#", "a/+/b", "$SYS/broker", "*", "?", "[a-z]", "{id}", "%s%n", "-rf",
    "--help", "é", "\u202e7", "\udcff", "7\u200b", "\u0667", "x" * 5000, "7;rm", "'", '"', "7 ", " 7", "7.", ".7",
    "CON:",
]  # fmt: skip


def test_an_id_of_a_scheduler_stays_readable() -> None:
    keys = {job_id: job_key(job_id) for job_id in ("4711", "12_3", "123.server", "12[3].pbs.site", "12[].server")}

    assert keys == {
        "4711": "4711",
        "12_3": "12_3",
        "123.server": "123-server",
        "12[3].pbs.site": "12_3-pbs-site",
        "12[].server": "12_-server",
    }


@pytest.mark.parametrize("job_id", HOSTILE)
def test_a_hostile_job_id_leads_nowhere(job_id: str, tmp_path: Path) -> None:
    key = job_key(job_id)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / f"job-metrics-{key}").mkdir()

    assert key == checked_id(key, what="key")
    assert not key.startswith("-")
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert key == identify({"SLURM_JOB_ID": job_id}, hostname="n1", pid=7).key or job_id == ""


def test_no_two_ids_share_a_key() -> None:
    tricky = [
        *HOSTILE, *RESERVED_IDS, "123.server", "123-server", "123.ser-ver", "123.ser.ver", "123-ser-ver",
        "12[3].server", "12_3.server", "12_3-server", "12[3]", "12_3", "12.3", "12-3", "a-b", "a.b", "a b", "A-B",
        "x" * 64, "x" * 65,
    ]  # fmt: skip
    made = [job_key(job_id) for job_id in tricky]
    forged = [job_key(key) for key in made if key not in tricky]

    assert len({*tricky}) == len({*made})
    assert {*forged}.isdisjoint(made)


def test_the_key_of_an_id_never_changes() -> None:
    assert job_key("a/b") == "a-b-hc14cddc033"
