"""How the cells of a text table are read, by a node that looks at it and by a plan that works with it."""

from __future__ import annotations

import csv

DELIMITERS = (",", ";", "\t", "|")
GAPS = frozenset(
    {
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
        "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    }
)  # fmt: skip
"""What stands for a value that is not there; as in pandas."""
TRUTHS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
SAMPLE_CHARACTERS = 256 * 1024
_SAMPLE_ROWS = 100


def delimiter_of(sample: str) -> str:
    """Choose the delimiter that cuts every row of a sample into as many cells, and into most; comma when none does."""
    if len(sample) == SAMPLE_CHARACTERS:
        sample = sample[: sample.rfind("\n") + 1] or sample
    widths = {delimiter: _width(sample, delimiter) for delimiter in DELIMITERS}
    agreed = [delimiter for delimiter in DELIMITERS if widths[delimiter][1] and widths[delimiter][0] > 1]
    return max(agreed or DELIMITERS, key=lambda delimiter: widths[delimiter][0])


def column_names(header: list[str]) -> list[str]:
    """Return the names in a first row; a nameless first column is the row index that pandas writes."""
    names = [name.strip() for name in header]
    if len(names) > 1 and not names[0]:
        names[0] = "Unnamed: 0"
    return names


def _width(sample: str, delimiter: str) -> tuple[int, bool]:
    """Return into how many cells the first row falls, and whether all others do so too."""
    width, agree = 0, True
    try:
        for number, row in enumerate(filter(None, csv.reader(sample.splitlines(keepends=True), delimiter=delimiter))):
            if number == 0:
                width = len(row)
            agree = agree and len(row) == width
            if number == _SAMPLE_ROWS:
                break
    except csv.Error:
        agree = False
    return width, agree
