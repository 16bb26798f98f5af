"""Hosts of a job, from lists and files of schedulers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmon.node.job.host_names import expand, from_file, own_name
from tests.node.job.machine import recorded


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07-09],gpu1", ["n1", "n2", "n3", "n07", "n08", "n09", "gpu1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("n[5]", ["n5"]),
        ("n1,n1,n2", ["n1", "n2"]),
        ("login.site,n[1-2].site", ["login.site", "n1.site", "n2.site"]),
    ],
)
def test_a_list_of_hosts_is_expanded_without_asking_anybody(text: str, hosts: list[str]) -> None:
    assert tuple(hosts) == expand(text)


def test_the_expansion_is_the_one_of_scontrol() -> None:
    real = recorded("slurm/cgroup/show-hostnames")

    assert tuple(real.stdout.split()) == expand(real.argv[-1])


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "n[", "n]", "n[]", "n[1-", "n[-1]", "n[3-1]", "n[a-b]", "n[1-3", "n[[1-2]]", "n[1-999999999999]",
        "(null)", "n[1-300]m[1-300]", "../x", "n 1", "n[1-2],,n3", "a/b", "n[\u0667]", "$(x)", "-n", "n" * 300,
    ],
)  # fmt: skip
def test_what_is_no_list_of_hosts_is_unknown(text: str) -> None:
    assert expand(text) is None


def test_a_file_names_each_host_once_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("n2\nn2\nn1\n\nn1\nn10.site\n")

    assert from_file(str(file)) == ("n2", "n1", "n10.site")


def test_what_is_no_plain_file_of_hosts_is_unknown_and_nobody_waits(tmp_path: Path) -> None:
    pipe, lie = tmp_path / "pipe", tmp_path / "lie"
    os.mkfifo(pipe)
    lie.write_bytes(b"\x7fELF\0\xff\n/etc/passwd\n")

    assert [from_file(str(each)) for each in (pipe, lie, tmp_path, tmp_path / "none", "", "a\0b")] == [None] * 6
    assert from_file("/dev/zero") is None


@pytest.mark.parametrize(
    ("hostname", "nodes", "name"),
    [
        ("n1", None, "n1"),
        ("n1", ["n1", "n2"], "n1"),
        ("n1.site", ["n1", "n2"], "n1"),
        ("n1", ["n1.site", "n2.site"], "n1.site"),
        ("n1", ["n1.a", "n1.b"], "n1"),
        ("n9", ["n1"], "n9"),
    ],
)
def test_a_host_has_the_name_that_its_scheduler_gave_it(hostname: str, nodes: list[str] | None, name: str) -> None:
    assert name == own_name(hostname, nodes)
