"""The NVML library behind one door: calls by name, and what each of its error codes means for a metric."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

from fedmon.node.collectors.base import CollectorUnavailableError, Why

_SONAME = "libnvidia-ml.so.1"
_NO_VALUE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE_ulonglong of nvml.h: a number that the driver does not have."""


class Meaning(enum.Enum):
    """The meaning of a refused call for the calls to come."""

    NEVER = "this device will not answer it, if it never did"
    ONCE = "it may answer next time"
    LOST = "the device is gone, or NVML was ended under us"


_MEANINGS = {
    "NOT_SUPPORTED": Meaning.NEVER,
    "FUNCTION_NOT_FOUND": Meaning.NEVER,
    "ARGUMENT_VERSION_MISMATCH": Meaning.NEVER,
    "DEPRECATED": Meaning.NEVER,
    "NO_PERMISSION": Meaning.NEVER,
    "INVALID_ARGUMENT": Meaning.NEVER,  # a link or policy that a card does not have
    "GPU_IS_LOST": Meaning.LOST,
    "GPU_NOT_FOUND": Meaning.LOST,
    "RESET_REQUIRED": Meaning.LOST,
    "UNINITIALIZED": Meaning.LOST,
}
"""Error names of nvml.h without their NVML_ERROR_; all others are ONCE."""

_WHY = {
    "NO_PERMISSION": Why.NO_PERMISSION,
    "LIBRARY_NOT_FOUND": Why.NOT_FOUND,
    "DRIVER_NOT_LOADED": Why.NOT_FOUND,
    "NOT_FOUND": Why.NOT_FOUND,
}


class RefusedError(CollectorUnavailableError):
    """NVML did not answer one call; ``error`` is its word for it, such as NOT_SUPPORTED."""

    def __init__(self, call: str, error: str, meaning: Meaning) -> None:
        unsupported = meaning is Meaning.NEVER
        why = _WHY.get(error, Why.UNSUPPORTED if unsupported else Why.FAILED)
        super().__init__(why, f"{call}: {error.lower().replace('_', ' ')}")
        self.error, self.meaning = error, meaning


class AbsentError(CollectorUnavailableError):
    """There is no NVML, no driver or no GPU on this machine; asking again is of no use."""


class Nvml:
    """Calls a module's functions by name; safe from any thread, as NVML is."""

    def __init__(self, module: Any) -> None:
        self._module: Any = module
        self._error: type[Exception] = module.NVMLError
        # Raised by pynvml, as no NVMLError, where the driver is older than the module.
        mismatch = getattr(module, "NVMLLibraryMismatchError", None)
        self._mismatch: tuple[type[Exception], ...] = (mismatch,) if isinstance(mismatch, type) else ()
        self._names: dict[int, str] = {0: "SUCCESS"} | {
            value: name.removeprefix("NVML_ERROR_")
            for name in dir(module)
            if name.startswith("NVML_ERROR_") and isinstance(value := getattr(module, name), int)
        }

    def call(self, name: str, /, *arguments: object) -> Any:
        """Call a function of NVML; an argument that begins with ``NVML_`` stands for the constant of that name.

        Raises RefusedError.
        """
        function = getattr(self._module, name, None)
        if function is None:
            raise RefusedError(name, "FUNCTION_NOT_FOUND", Meaning.NEVER)
        try:
            return function(*[self._argument(name, argument) for argument in arguments])
        except self._error as error:
            code = getattr(error, "value", None)
            raise self.refusal(code if isinstance(code, int) else -1, name) from None
        except self._mismatch:
            raise RefusedError(name, "FUNCTION_NOT_FOUND", Meaning.NEVER) from None
        except (TypeError, ValueError, LookupError, OSError, ArithmeticError, ctypes.ArgumentError) as error:
            raise RefusedError(name, f"{type(error).__name__}: {error}", Meaning.ONCE) from None

    def refusal(self, code: int, call: str) -> RefusedError:
        """Return the error that an NVML return code stands for."""
        name = self._names.get(code, f"error {code}")
        return RefusedError(call, name, _MEANINGS.get(name, Meaning.ONCE))

    def constant(self, name: str) -> int | None:
        """Return a constant of nvml.h; None where the module is too old to know it."""
        value = getattr(self._module, name, None)
        return value if isinstance(value, int) else None

    def _argument(self, call: str, argument: object) -> object:
        if not isinstance(argument, str) or not argument.startswith(("NVML_", "nvml")):
            return argument
        value = self.constant(argument)
        if value is None:
            raise RefusedError(f"{call}({argument})", "FUNCTION_NOT_FOUND", Meaning.NEVER)
        return value


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
    """Return what NVML answered as a number; None where it says that it has none. Raises RefusedError."""
    plain = getattr(value, "value", value)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise RefusedError(call, f"answered {plain!r}"[:100], Meaning.ONCE)
    return None if plain == _NO_VALUE or plain != plain else plain  # noqa: PLR0124 - NaN differs from itself


def text(value: object) -> str:
    """Return a text of NVML; older modules give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
