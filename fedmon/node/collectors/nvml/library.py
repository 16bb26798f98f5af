"""NVML by the names of its functions, and the meaning of its error codes for a metric."""

from __future__ import annotations

import ctypes
import enum
import math
from typing import Any

from fedmon.node.collectors.base import CollectorUnavailableError, Why

_SONAME = "libnvidia-ml.so.1"
NO_VALUE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE_ulonglong of nvml.h: a number that the driver does not have."""


class Meaning(enum.Enum):
    """The meaning of a refused call for later calls."""

    NEVER = "this device will not answer it, if it never did"
    ONCE = "it may answer next time"
    LOST = "the device is gone, or NVML was shut down by another part of this process"


_NEVER = (
    *("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED", "NO_PERMISSION"),
    "INVALID_ARGUMENT",  # a link or policy that a card does not have
)
_LOST = ("GPU_IS_LOST", "GPU_NOT_FOUND", "RESET_REQUIRED", "UNINITIALIZED")
_MEANINGS = dict.fromkeys(_NEVER, Meaning.NEVER) | dict.fromkeys(_LOST, Meaning.LOST)
"""Error names of nvml.h without their NVML_ERROR_; all others are ONCE."""

_WHY = {
    "NO_PERMISSION": Why.NO_PERMISSION,
    "LIBRARY_NOT_FOUND": Why.NOT_FOUND,
    "DRIVER_NOT_LOADED": Why.NOT_FOUND,
    "NOT_FOUND": Why.NOT_FOUND,
}


class RefusedError(CollectorUnavailableError):
    """NVML did not answer one call; ``error`` is its name for the error, such as NOT_SUPPORTED."""

    def __init__(self, call: str, error: str, meaning: Meaning | None = None) -> None:
        self.error, self.meaning = error, meaning or _MEANINGS.get(error, Meaning.ONCE)
        why = _WHY.get(error, Why.UNSUPPORTED if self.meaning is Meaning.NEVER else Why.FAILED)
        super().__init__(why, f"{call}: {error.lower().replace('_', ' ')}")


class AbsentError(CollectorUnavailableError):
    """This machine has no NVML, no driver or no GPU; a retry is of no use."""


class Nvml:
    """A module such as ``pynvml``, called by names; safe from any thread, as NVML is."""

    def __init__(self, module: Any) -> None:
        self._module: Any = module
        self._names = {
            value: name.removeprefix("NVML_ERROR_")
            for name in dir(module)
            if name.startswith("NVML_ERROR_") and isinstance(value := getattr(module, name), int)
        } | {0: "SUCCESS"}

    def call(self, name: str, /, *arguments: object) -> Any:
        """Call a function of NVML; an argument that begins with ``NVML_`` stands for the constant of that name.

        Raises RefusedError.
        """
        module = self._module
        try:
            return getattr(module, name)(*[self._argument(each) for each in arguments])
        except module.NVMLError as error:
            raise self.refusal(getattr(error, "value", -1), name) from None
        except (AttributeError, module.NVMLLibraryMismatchError):  # the module or the driver is too old for it
            raise RefusedError(name, "FUNCTION_NOT_FOUND") from None
        except (TypeError, ValueError, LookupError, OSError, ArithmeticError, ctypes.ArgumentError) as error:
            raise RefusedError(name, f"{type(error).__name__}: {error}") from None

    def refusal(self, code: int, call: str) -> RefusedError:
        """Return the error for a return code of NVML."""
        return RefusedError(call, self._names.get(code, f"error {code}"))

    def constant(self, name: str) -> int:
        """Return a constant of nvml.h. Raises AttributeError if the module is too old to know it."""
        value: int = getattr(self._module, name)
        return value

    def _argument(self, argument: object) -> object:
        is_name = isinstance(argument, str) and argument.startswith(("NVML_", "nvml"))
        return self.constant(str(argument)) if is_name else argument


def load_nvml() -> Nvml:
    """Return NVML through ``pynvml``; importing it costs 4 MB, so the driver's library is looked for first.

    Raises AbsentError.
    """
    try:
        ctypes.CDLL(_SONAME)
    except OSError:
        raise AbsentError(Why.NOT_FOUND, f"{_SONAME}: no NVIDIA driver on this machine") from None
    try:
        import pynvml
    except ImportError:
        raise AbsentError(Why.NOT_FOUND, "Python package nvidia-ml-py: install it") from None
    return Nvml(pynvml)


def number(value: object, *, call: str) -> int | float | None:
    """Return an answer of NVML as a number; None if NVML has no value. Raises RefusedError."""
    plain = getattr(value, "value", value)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise RefusedError(call, f"answered {plain!r}"[:100])
    return None if plain == NO_VALUE or math.isnan(plain) else plain


def text(value: object) -> str:
    """Return a text of NVML; older modules give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
