"""What lies at the path of a dataset: whether it can be offered, and its shape."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.node.registers.tabular import read_table

TABLES = frozenset({"csv", "tabular"})
FOLDERS = frozenset({"images", "medical-folder"})
_IMAGE_SUFFIXES = frozenset(
    {".bmp", ".dcm", ".gif", ".jpeg", ".jpg", ".nii", ".nii.gz", ".png", ".tif", ".tiff", ".webp"}
)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a dataset (rows and columns, or the number of images or subjects) and its columns' types."""

    shape: tuple[int, ...] | None = None
    dtypes: dict[str, str] | None = None


def measure(path: Path, data_type: str) -> Measured:
    """Look at what a dataset is to be made of; safe from any thread.

    A csv or tabular file is read through; the images of a folder and of its subfolders are counted; of a medical
    folder the subjects (subfolders) are counted; of other types only the presence is checked. Raises InvalidInputError
    when there is nothing at ``path``, or not what the type needs.
    """
    try:
        if not path.exists():
            raise InvalidInputError(f"there is nothing at {path}: name an existing file or folder")
        if data_type in TABLES:
            if not path.is_file():
                raise InvalidInputError(f"{path} is not a file: a dataset of type {data_type} is one table")
            table = read_table(path)
            return Measured(shape=(table.rows, table.columns), dtypes=table.dtypes)
        if data_type in FOLDERS:
            if not path.is_dir():
                raise InvalidInputError(f"{path} is not a folder: a dataset of type {data_type} needs one")
            count, wanted = (_images(path), "image") if data_type == "images" else (_subjects(path), "subject's folder")
            if not count:
                raise InvalidInputError(f"there is no {wanted} in {path}")
            return Measured(shape=(count,))
        if not os.access(path, os.R_OK):
            raise InvalidInputError(f"{path} cannot be read by this user")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be looked at: {error.strerror}") from error
    return Measured()


def _images(folder: Path) -> int:
    return sum(
        1 for _, _, names in os.walk(folder, onerror=_raise) for name in names if _IMAGE_SUFFIXES & _suffixes(name)
    )


def _suffixes(name: str) -> frozenset[str]:
    parts = name.lower().split(".")
    return frozenset({f".{parts[-1]}", f".{'.'.join(parts[-2:])}"}) if len(parts) > 1 else frozenset()


def _subjects(folder: Path) -> int:
    return sum(1 for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _raise(error: OSError) -> None:
    raise error
