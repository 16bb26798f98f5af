"""The broker's users: names that cannot be mistaken, passwords that cannot be read back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.broker.folder import BrokerFolder
from fedmon.broker.users import Role, Users
from fedmon.common.errors import ConflictError, StorageError
from tests.support.passwords import PASSWORD


@pytest.fixture
def users(tmp_path: Path) -> Users:
    return Users(BrokerFolder(tmp_path / "broker"))


def test_a_password_is_kept_as_a_salted_hash_that_only_we_can_read(users: Users, tmp_path: Path) -> None:
    users.add("a", Role.NODE, PASSWORD)
    users.add("b", Role.NODE, PASSWORD)
    file = tmp_path / "broker" / "passwords" / "nodes"

    first, second = (line.partition(":")[2] for line in file.read_text().splitlines())
    assert PASSWORD not in file.read_text()
    assert first != second
    assert first.startswith("$7$5000$")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_no_node_has_a_name_that_any_job_could_take(users: Users) -> None:
    users.add("job-cluster", Role.JOB, PASSWORD)
    users.add("jobs", Role.NODE, PASSWORD)

    with pytest.raises(ConflictError, match="those of batch jobs"):
        users.add("job-4711-n1", Role.NODE, PASSWORD)
    assert [name for name, _role in users.all()] == ["jobs", "job-cluster"]


def test_a_damaged_password_file_is_named_with_its_line(users: Users, tmp_path: Path) -> None:
    users.add("a", Role.NODE, PASSWORD)
    file = tmp_path / "broker" / "passwords" / "nodes"
    before = file.read_text() + "\n"

    for text, complaint in ((before + "nonsense\n", f"line 3 of {file}"), ("\udcff", f"cannot read {file}: .*utf-8")):
        file.write_bytes(os.fsencode(text))
        with pytest.raises(StorageError, match=complaint):
            users.add("b", Role.NODE, PASSWORD)


def test_users_added_by_several_processes_at_once_are_all_there(users: Users, tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from fedmon.broker.folder import BrokerFolder\n"
        "from fedmon.broker.users import Role, Users\n"
        "users = Users(BrokerFolder(pathlib.Path(sys.argv[1])))\n"
        "for number in range(10): users.add(f'{sys.argv[2]}{number}', Role.NODE, 'correct horse battery')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "broker")]

    adding = [subprocess.Popen([*command, letter]) for letter in "abc"]
    codes = [process.wait(60) for process in adding]

    assert codes == [0, 0, 0]
    assert len(users.all()) == 30
