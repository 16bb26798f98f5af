"""The guides to experiments, from first to last block: each runs where the one before ended, and prints that."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment import ResourceFactory
from tests.support.shell_here import fedmon_here

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/howtos/running-experiments.md").read_text()
PORTING = (ROOT / "docs/howtos/porting-from-nepi.md").read_text()
FEDERATED = ("Over hospitals", "In rounds, with conditions", "After a crash")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


_SLOWER = {'"deploy": 2.0': '"deploy": 10.0', '"sleep", "0.5"': '"sleep", "8"', '"0.2s"': '"1s"'}
"""Times of the guide that are too short for a machine that does other things beside; all else runs as it stands."""


assert all(word in GUIDE for word in _SLOWER)


class Reader:
    """Does what the guide shows, section by section, in a folder of its own."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self._folder, self._url = folder, url
        self._names: dict[str, Any] = {"__name__": "guide"}
        self.count = 0

    def read(self, *titles: str, page: str = GUIDE) -> None:
        """Run the blocks of sections, and compare what each prints with what the page says."""
        for title in titles:
            said = None
            for kind, text in BLOCK.findall(page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]):
                if kind == "toml":
                    (self._folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
                elif kind == "sh":
                    for line in text.splitlines():
                        done = fedmon_here(*line.split()[1:])
                        assert done.returncode == 0, (line, done.stderr)
                elif kind == "python":
                    assert not said, f"{title}: what a block prints is not in the guide: {said}"
                    said = self._run(title, text)
                else:
                    assert (kind, said) == ("text", text)
                    said = None
                    self.count += 1
            assert not said, f"{title}: what the last block prints is not in the guide: {said}"

    def _run(self, title: str, text: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for said, done in {"mqtt://localhost:1883": self._url, **_SLOWER}.items():
                text = text.replace(said, done)
            exec(compile(text, title, "exec"), self._names)
        return printed.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "researcher"))
    return tmp_path


def titles() -> list[str]:
    return re.findall(r"^## (.+)$", GUIDE, re.MULTILINE)


def test_what_needs_no_federation_runs_as_it_stands(folder: Path) -> None:
    reader = Reader(folder)

    reader.read(*[title for title in titles() if title not in FEDERATED])

    assert reader.count == 4
    assert len(list((folder / "runs/hello").glob("*/journal.jsonl"))) == 2


@pytest.mark.slow_docs
def test_what_is_shown_over_hospitals_runs_as_it_stands(folder: Path, hospitals: str) -> None:
    reader = Reader(folder, hospitals)
    reader.read("Two resources", "Your own type")

    reader.read(*FEDERATED)

    assert reader.count == 3
    assert len(list(folder.glob("runs/rounds/*/*.json"))) == 9


def test_what_porters_read_runs_as_it_stands(folder: Path) -> None:
    reader = Reader(folder)

    # The imports stand before the first section.
    page = PORTING.replace("# Porting", "\n## Porting", 1)
    reader.read(*re.findall(r"^## (.+)$", page, re.MULTILINE), page=page)

    assert reader.count == 3
    assert len(BLOCK.findall(PORTING)) == PORTING.count("\n```") / 2
    assert ResourceFactory.get_resource_type("Collector") is not None


def test_every_section_is_read() -> None:
    assert set(FEDERATED) < set(titles())
    assert len(BLOCK.findall(GUIDE)) == GUIDE.count("\n```") / 2
