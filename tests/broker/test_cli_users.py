"""``fedmon broker user`` and ``config``: no terminal needed, no password shown twice."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from fedmon.broker.configuration import PRIVATE_FOLDERS, production_files
from fedmon.broker.folder import BrokerFolder
from fedmon.broker.users import Role, Users
from fedmon.common.files import LockFile
from tests.broker.shell import answer, fedmon_broker
from tests.support.environment import plain_environment
from tests.support.passwords import PASSWORD, secret_file
from tests.support.terminal import Terminal


def users_in(folder: Path) -> Users:
    return Users(BrokerFolder(folder))


def test_a_generated_password_is_shown_once(tmp_path: Path) -> None:
    added = answer("user", "add", "hospital-a", "--role", "node", "--data-dir", tmp_path)
    listed = answer("user", "list", "--data-dir", tmp_path)

    assert len(added["password"]) == 32
    assert listed["users"] == [{"user": "hospital-a", "role": "node"}]
    assert added["password"] not in "".join(
        path.read_text() for path in tmp_path.rglob("*") if path.is_file()
    ) + json.dumps(listed)


def test_a_saved_password_is_in_its_file_and_not_on_the_screen(tmp_path: Path) -> None:
    file = tmp_path / "b/hospital-a.password"

    finished = fedmon_broker(
        "user", "add", "hospital-a", "--role", "node", "--save", file, "--data-dir", tmp_path / "b"
    )

    password = file.read_text().strip()
    assert (finished.returncode, len(password), file.stat().st_mode & 0o777) == (0, 32, 0o600)
    assert password not in finished.stdout + finished.stderr


@pytest.mark.parametrize("name", ["kept", "missing/file"])
def test_a_user_whose_password_cannot_be_saved_is_not_added(name: str, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    words = ("--role", "node", "--save", tmp_path / name, "--data-dir", tmp_path / "b")

    finished = fedmon_broker("user", "add", "hospital-a", *words)

    assert (finished.returncode, (tmp_path / "kept").read_text()) == (2, "kept")
    assert users_in(tmp_path / "b").all() == []


def test_a_password_of_a_user_who_cannot_be_added_is_not_saved(tmp_path: Path) -> None:
    file = tmp_path / "a.password"

    finished = fedmon_broker("user", "add", "a/b", "--role", "node", "--save", file, "--data-dir", tmp_path / "b")

    assert (finished.returncode, file.exists()) == (2, False)


def test_a_given_password_is_never_shown(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "password")

    from_file = fedmon_broker(
        "user", "add", "a", "--role", "node", "--password-file", file, "--data-dir", tmp_path / "b"
    )
    typed = fedmon_broker(
        "user", "add", "b", "--role", "node", "--password-file", "-", "--data-dir", tmp_path / "b", typed=PASSWORD
    )

    assert (from_file.returncode, typed.returncode) == (0, 0)
    assert PASSWORD not in from_file.stdout + from_file.stderr + typed.stdout + typed.stderr


@pytest.mark.parametrize(("typed", "code"), [(f"{PASSWORD}\n", 0), ("\x04", 1)], ids=["typed", "Ctrl-D"])
def test_a_password_is_asked_for_on_a_terminal(typed: str, code: int, tmp_path: Path) -> None:
    words = ("user", "add", "a", "--role", "node", "--ask", "--data-dir", str(tmp_path / "b"))
    with Terminal("broker", *words) as terminal:
        for prompt in ["Password: ", "Repeat for confirmation: "][: 2 - code]:
            terminal.read_until(prompt)
            terminal.press(typed)
        ended, shown = terminal.end()

    assert (ended, "fedmon: aborted" in shown) == (code, bool(code))
    assert users_in(tmp_path / "b").all() == [("a", Role.NODE)] * (not code)


@pytest.mark.parametrize(
    ("arguments", "typed", "code", "reason"),
    [
        (["a", "--role", "node", "--ask"], "", 2, "needs a terminal"),
        (["a", "--role", "node", "--password-file", "-"], "short\n", 2, "must have 12 to 512"),
        (["a", "--role", "node", "--password-file", "-"], "", 2, "must have 12 to 512"),
        (["a", "--role", "node", "--password-file", "-"], "correct\thorse battery", 2, "must be one line"),
        (["a", "--role", "node", "--password-file", "missing"], "", 2, "cannot read"),
        (["a", "--role", "node", "--ask", "--save", "x"], "", 2, "exclude each other"),
        (["a", "--role", "king"], "", 2, "king"),
        (["a"], "", 2, "--role"),
        (["a/b", "--role", "node"], "", 2, "letters, digits"),
        (["nodes", "--role", "node"], "", 2, "reserved"),
        (["taken", "--role", "node"], "", 4, "--replace"),
        (["taken", "--role", "researcher", "--replace"], "", 4, "is the name of a node already; choose another"),
    ],
)
def test_what_cannot_be_added_is_refused_with_a_reason(
    arguments: list[str], typed: str, code: int, reason: str, tmp_path: Path
) -> None:
    users_in(tmp_path).add("taken", Role.NODE, PASSWORD)

    finished = fedmon_broker("user", "add", *arguments, "--data-dir", tmp_path, typed=typed)

    assert finished.returncode == code
    assert reason in finished.stderr
    assert users_in(tmp_path).all() == [("taken", Role.NODE)]


def test_a_name_that_cannot_be_added_or_removed_makes_no_folder(tmp_path: Path) -> None:
    added = fedmon_broker("user", "add", "a/b", "--role", "node", "--data-dir", tmp_path / "typo/b")
    removed = fedmon_broker("user", "remove", "a", "--data-dir", tmp_path / "typo/b")

    assert (added.returncode, removed.returncode, list(tmp_path.iterdir())) == (2, 3, [])


def test_the_default_folder_is_in_the_home_and_one_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    environ = plain_environment(XDG_DATA_HOME=str(tmp_path))
    folder = tmp_path / "fedmon" / "broker"

    assert answer("user", "list", environ=environ)["data_dir"] == str(folder)
    folder.parent.touch()
    finished = fedmon_broker("user", "add", "a", "--role", "node", environ=environ)
    assert (finished.returncode, f"cannot write {folder}: Not a directory" in finished.stderr) == (1, True)


def test_removing_tells_the_role_and_an_unknown_user_is_not_found(tmp_path: Path) -> None:
    users_in(tmp_path).add("a", Role.MONITOR, PASSWORD)

    assert answer("user", "remove", "a", "--data-dir", tmp_path)["role"] == "monitor"
    refused = fedmon_broker("user", "remove", "a", "--data-dir", tmp_path)
    assert (refused.returncode, refused.stderr) == (
        3, f"fedmon: user 'a' not found; see: fedmon broker user list --data-dir {tmp_path}\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "following"), [("user", "user add NAME --role node"), ("repository token", "repository token add NAME")]
)
def test_a_printed_command_names_the_folder_unless_it_is_the_default_one(
    what: str, following: str, tmp_path: Path
) -> None:
    environ = plain_environment(XDG_DATA_HOME=str(tmp_path))

    places = ((), ("--data-dir", "my broker"))
    listed = [fedmon_broker(*what.split(), "list", *words, environ=environ).stdout for words in places]

    command = f"next: fedmon broker {following}"
    assert [text.rpartition("; ")[2] for text in listed] == [f"{command}\n", f"{command} --data-dir 'my broker'\n"]


@pytest.mark.parametrize(
    ("text", "reload"),
    [("999999999 users", "not running"), ("{pid} users elsewhere", "not running"), ("", "restart needed")],
    ids=["in a container", "on a machine with the same folder", "as it starts"],
)
def test_a_password_is_shown_and_no_other_process_told_where_the_broker_cannot_be(
    text: str, reload: str, tmp_path: Path
) -> None:
    running = LockFile(tmp_path / "running.pid")
    with subprocess.Popen(["sleep", "60"]) as other:
        running.take(text.format(pid=other.pid))

        added = answer("user", "add", "a", "--role", "node", "--data-dir", tmp_path)
        running.release()
        other.terminate()

    assert (len(added["password"]), added["reload"]) == (32, reload)
    assert other.returncode == -signal.SIGTERM


def test_config_show_prints_one_file_or_all() -> None:
    one = fedmon_broker("config", "show", "acl/nodes")
    every = answer("config", "show")

    assert one.stdout == production_files()["acl/nodes"]
    assert every["files"] == production_files()
    assert fedmon_broker("config", "show", "nonsense").returncode == 3


def test_config_write_makes_a_private_folder_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    users_in(folder).add("a", Role.NODE, PASSWORD)
    (folder / "mosquitto.conf").write_text("old")

    written = answer("config", "write", folder)

    assert written["files"] == sorted(production_files())
    assert {name: (folder / name).read_text() for name in written["files"]} == production_files()
    assert users_in(folder).all() == [("a", Role.NODE)]
    assert [name for name in PRIVATE_FOLDERS if (folder / name).stat().st_mode & 0o077] == []
