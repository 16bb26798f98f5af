"""What an ordinary plan does, confined: it must all work. Prints what failed, nothing where all is well."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

with open(3) as _file:
    ASKED = json.load(_file)
sys.path[1:] = ASKED["path"]


def _square(number: int) -> int:
    return number * number


def _answer(connection: object) -> None:
    connection.send(os.getpid())  # type: ignore[attr-defined]


def threads() -> None:
    found: list[int] = []
    started = [threading.Thread(target=found.append, args=(number,)) for number in range(4)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    assert sorted(found) == [0, 1, 2, 3]


def arrays() -> None:
    import numpy as np

    one = np.arange(250_000.0).reshape(500, 500)
    assert np.isclose((one @ np.eye(500)).sum(), one.sum())
    np.linalg.svd(one[:100, :100])
    np.save("array.npy", one)
    assert (np.load("array.npy", mmap_mode="r") == one).all()


def own_python() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True, timeout=20
    )
    assert said.stdout == "42\n", said


def packages_in_own_python() -> None:
    subprocess.run([sys.executable, "-c", "import numpy"], check=True, timeout=20)


def pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        assert workers.map(_square, range(3)) == [0, 1, 4]


def manager() -> None:
    with multiprocessing.get_context("fork").Manager() as shared:
        assert list(shared.list([1])) == [1]


def child_and_pipe() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_answer, args=(theirs,))
    child.start()
    assert ours.recv() == child.pid
    child.join()


def ended_child() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    child.terminate()
    assert child.wait(60) < 0


def files() -> None:
    import tempfile

    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("text")
    Path("folder").mkdir()
    Path("folder/file").write_text("text")
    Path("folder/file").rename("folder/other")
    assert Path("folder/other").read_text() == "text"


def dataset() -> None:
    assert "a,b" in Path(ASKED["data"]).read_text()


def descriptors() -> None:
    left_open = [number for number in range(7, 256) if _is_open(number)]
    assert left_open == [], left_open


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    for name in ASKED["tried"]:
        tried: Callable[[], None] = globals()[name]
        try:
            tried()
        except BaseException:  # noqa: BLE001 - told, and the next one is tried
            print(name, traceback.format_exc())
