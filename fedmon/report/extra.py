"""The libraries that only reports need, and the error if they are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fedmon.common.errors import SettingsError, StorageError

_LIBRARIES = frozenset({"fpdf", "h5py", "matplotlib", "networkx", "numpy", "pandas", "PIL", "pyarrow"})


class MissingExtraError(SettingsError, ImportError):
    """A library of the extra `report` is not installed; the message says how to get it."""


@contextlib.contextmanager
def report_extra(what: str) -> Iterator[None]:
    """Turn a missing library into MissingExtraError; ``what`` begins the sentence, such as "an export".

    Raises StorageError if matplotlib finds no folder that it can write.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES:
            raise
        raise MissingExtraError(
            f"{what} needs {missing}: install fedmon with its extra [report], as its README says"
        ) from error
    except OSError as error:
        if "MPLCONFIGDIR" not in str(error):
            raise
        raise StorageError(str(error)) from error
