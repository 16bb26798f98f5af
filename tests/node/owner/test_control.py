"""The control socket serves the owner's shell, and no client can keep it from serving the others."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import ConflictError, FedmonError, InvalidInputError, NoAnswerError
from fedmon.node.owner.control import (
    MAX_REQUEST_BYTES,
    ControlError,
    ControlServer,
    DaemonNotRunningError,
    call_daemon,
    daemon_pid,
)
from fedmon.node.registers.dataset_source import MAX_COLUMNS


def _echo(command: str, args: dict[str, Any], by: str) -> dict[str, Any]:
    match command:
        case "refuse":
            raise ConflictError("the name is taken")
        case "newer":
            raise InvalidInputError("newer: Object contains unknown field `asked`")
        case "unsound":
            raise ConflictError("no file \udcff")
        case "break":
            raise ValueError("a defect")
        case "who":
            return {"by": by}
        case "large":
            return {"text": "x" * 8_000_000}
        case _:
            return {"command": command, **args}


@contextlib.contextmanager
def serving(folder: Path, *, idle_timeout_s: float = 10.0) -> Iterator[ControlServer]:
    server = ControlServer(folder, _echo, idle_timeout_s=idle_timeout_s)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _raw(folder: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60.0)
    client.connect(str(folder / "control.sock"))
    return client


def _answered(folder: Path) -> dict[str, Any]:
    return call_daemon(folder, "ping", timeout_s=60.0, n=1)


PONG = {"command": "ping", "n": 1}


def test_a_command_is_answered_with_what_the_daemon_returned_who_learns_whose_it_is(tmp_path: Path) -> None:
    with serving(tmp_path):
        answers = [call_daemon(tmp_path, "plan-list", filter="ü\n"), _answered(tmp_path), call_daemon(tmp_path, "who")]
        mode = (tmp_path / "control.sock").stat().st_mode & 0o777
        assert daemon_pid(tmp_path, timeout_s=60.0) in (os.getpid(), None)

    assert answers == [{"command": "plan-list", "filter": "ü\n"}, PONG, {"by": pwd.getpwuid(os.geteuid()).pw_name}]
    assert mode == 0o600


def test_a_look_at_the_daemons_process_is_no_warning_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path):
        daemon_pid(tmp_path, timeout_s=60.0)
        assert _answered(tmp_path) == PONG  # after the look was served

    assert caplog.messages == []


def test_a_refusal_keeps_its_words_and_the_next_command_is_served_also_after_a_defect(tmp_path: Path) -> None:
    with serving(tmp_path):
        with pytest.raises(ControlError) as caught:
            call_daemon(tmp_path, "refuse")
        with pytest.raises(ControlError, match="ValueError: a defect"):
            call_daemon(tmp_path, "break")
        with pytest.raises(ControlError, match=r"no file \\udcff"):
            call_daemon(tmp_path, "unsound")
        with pytest.raises(ControlError, match=r"unknown field .*; another fedmon runs here: restart it with"):
            call_daemon(tmp_path, "newer", asked=[])
        for told in (call_daemon(tmp_path, "plan-show"), call_daemon(tmp_path, "status", live={})["live"]):
            with pytest.raises(FedmonError, match="does not tell 'new'; another fedmon runs here: restart it with"):
                told["new"]
        assert _answered(tmp_path) == PONG

    assert caught.value.facts() == {"message": "the name is taken", "type": "ConflictError", "exit_code": 4}


@pytest.mark.parametrize(
    "noise",
    [b"\n", b"\xff\xfe\n", b"[]\n", b'{"command": 1}\n', b'{"command": "x", "more": 1}\n', b"[" * 100_000 + b"\n"],
)
def test_noise_is_answered_as_noise_and_the_next_is_served(tmp_path: Path, noise: bytes) -> None:
    with serving(tmp_path), _raw(tmp_path) as client:
        client.sendall(noise)
        answer = json.loads(client.makefile("rb").readline())
        assert _answered(tmp_path) == PONG

    assert answer["error"]["exit_code"] == 2


def test_clients_that_do_not_say_or_read_a_line_are_cut_off_and_the_next_is_served(tmp_path: Path) -> None:
    with (
        serving(tmp_path, idle_timeout_s=0.3),
        _raw(tmp_path) as silent,
        _raw(tmp_path) as halfway,
        _raw(tmp_path) as lazy,
    ):
        halfway.sendall(b'{"command":')
        lazy.sendall(b'{"command": "large"}\n')
        assert _answered(tmp_path) == PONG
        ends = (silent.recv(1), halfway.recv(1))

    assert ends == (b"", b"")


def test_shells_that_wait_are_served_in_turn_and_one_that_left_is_not_served_later(tmp_path: Path) -> None:
    is_free, begun, run = threading.Event(), threading.Event(), []

    def submit(command: str, args: dict[str, Any], by: str) -> dict[str, Any]:
        begun.set()
        assert is_free.wait(60.0)
        run.append(command)
        return _echo(command, args, by)

    server = ControlServer(tmp_path, submit)
    server.start()
    with ThreadPoolExecutor(11) as shells:
        first = shells.submit(_answered, tmp_path)
        assert begun.wait(60.0)
        with pytest.raises(NoAnswerError, match=r"within 0\.2 s to 'late'; look whether it was carried out"):
            call_daemon(tmp_path, "late", timeout_s=0.2)
        others = [shells.submit(_answered, tmp_path) for _ in range(10)]
        is_free.set()
        assert [each.result(60.0) for each in (first, *others)] == [PONG] * 11
    server.stop()

    assert run == ["ping"] * 11


def test_an_endless_request_is_cut_off_at_the_cap(tmp_path: Path) -> None:
    with serving(tmp_path), _raw(tmp_path) as client:
        with pytest.raises(ConnectionError):
            client.sendall(b"x" * (2 * MAX_REQUEST_BYTES))
        assert _answered(tmp_path) == PONG


def test_a_table_of_the_most_columns_fits_into_a_request(tmp_path: Path) -> None:
    columns = {f"column-{number:022}": "float64" for number in range(MAX_COLUMNS)}
    with serving(tmp_path):
        assert call_daemon(tmp_path, "dataset-add", timeout_s=60.0, dtypes=columns)["dtypes"] == columns


def test_the_socket_of_a_killed_daemon_is_replaced_and_a_stopped_one_leaves_none(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "control.sock"))
    dead.close()
    with pytest.raises(DaemonNotRunningError, match="fedmon node start"):
        _answered(tmp_path)

    with serving(tmp_path):
        assert _answered(tmp_path) == PONG

    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DaemonNotRunningError, match="not running"):
        _answered(tmp_path)


def test_a_folder_deeper_than_a_socket_address_holds_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 60] * 5)
    deep.mkdir(parents=True)

    with serving(deep):
        assert _answered(deep) == PONG
        assert [path.name for path in deep.iterdir()] == ["control.sock"]


def test_a_daemon_that_never_answers_ends_the_call_at_its_timeout(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "control.sock"))
        deaf.listen(0)
        with pytest.raises(NoAnswerError, match=r"within 0\.2 s"):
            call_daemon(tmp_path, "ping", timeout_s=0.2)
        with pytest.raises(NoAnswerError, match="does not take calls; look at its log"):
            call_daemon(tmp_path, "ping", timeout_s=0.2)


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not Path("/usr/bin/python3").exists(),
    reason="needs root to become another user, and a Python that such a user can run",
)
def test_another_user_is_turned_away_even_when_the_modes_would_let_them_in() -> None:
    code = (
        "import socket, sys\n"
        "c = socket.socket(socket.AF_UNIX)\n"
        "c.connect(sys.argv[1])\n"
        "print('connected')\n"
        "try:\n"
        '    c.sendall(b\'{"command": "ping"}\\n\')\n'
        "    print(c.recv(100))\n"
        "except ConnectionError:\n"
        "    print(b'')\n"
    )
    # Not in pytest's folder: each start of pytest by this user closes its parents to others again.
    with tempfile.TemporaryDirectory(dir="/tmp") as name, serving(folder := Path(name)):
        folder.chmod(0o755)
        path = folder / "control.sock"
        path.chmod(0o666)
        ran = subprocess.run(
            ["/usr/bin/python3", "-c", code, str(path)], user=65534, capture_output=True, timeout=60, check=False
        )
        assert _answered(folder) == PONG

    assert ran.stdout == b"connected\nb''\n"
