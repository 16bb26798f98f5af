"""Files that an earlier version wrote, laid out as it left them."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

FILES = Path(__file__).parent / "files"


def opened(name: str, folder: Path) -> Path:
    """Lay out what was kept as ``files/NAME`` below a private folder, and return its place there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    place = folder / name
    if (packed := FILES / f"{name}.gz").exists():
        place.write_bytes(gzip.decompress(packed.read_bytes()))
        place.chmod(0o600)
        return place
    if not (FILES / f"{name}.tar.gz").exists():
        place.write_bytes((FILES / name).read_bytes())
        return place
    place.mkdir(mode=0o700)
    with tarfile.open(FILES / f"{name}.tar.gz") as archive:
        archive.extractall(place, filter="tar")
    (inner,) = place.iterdir()
    inner.chmod(0o700)
    return inner
