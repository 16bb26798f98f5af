"""Files stay readable and are named after what they hold; what is shipped is what belongs there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "fedmon").rglob("*.py"))
MAX_LINES = 900


def test_each_file_holds_one_concept() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in FILES}

    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "fedmon", source / "fedmon", ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    kept = {str(path.relative_to(source)) for path in (source / "fedmon").rglob("*") if path.is_file()}
    (source / "build" / "lib" / "fedmon").mkdir(parents=True)
    (source / "build" / "lib" / "fedmon" / "removed.py").touch()

    # What pip calls, too; without pip itself it takes half of the time.
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    wheel = next(tmp_path.glob("fedmon-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        license_names = [name for name in archive.namelist() if name.endswith("LICENSE")]
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
        entry = archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt"))).decode()

    assert shipped == kept
    assert {"fedmon/py.typed", "fedmon/demo/data/SOURCE.md"} <= shipped
    assert any(name.startswith("fedmon/broker/templates/") for name in shipped)
    assert len(license_names) == 1
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text
    assert "fedmon = fedmon.cli:main" in entry
