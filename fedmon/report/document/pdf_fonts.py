"""The letters of the PDF: DejaVu, which comes with matplotlib, and placeholders for scripts that it does not have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

STYLES = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf", "I": "DejaVuSans-Oblique.ttf"}
_LAST_RESORT = "LastResortHE-Regular.ttf"


def font_folder() -> Path:
    """Return where matplotlib keeps its fonts."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def write_placeholders(letters: Iterable[int], path: Path) -> bool:
    """Write a font with a placeholder for each of these code points; False where there are none to take.

    The font has one for every code point there is: the part of it that is needed is a thousandth, and is used at once.
    """
    from fontTools.subset import Options, Subsetter  # type: ignore[import-untyped] # it has no types
    from fontTools.ttLib import TTFont  # type: ignore[import-untyped] # it has no types

    whole = font_folder() / _LAST_RESORT
    if not whole.exists():
        return False
    options = Options()
    options.drop_tables = [*options.drop_tables, "FFTM"]
    with TTFont(whole, lazy=True) as font:
        subsetter = Subsetter(options)
        subsetter.populate(unicodes=letters)
        subsetter.subset(font)
        font.save(path)
    return True
