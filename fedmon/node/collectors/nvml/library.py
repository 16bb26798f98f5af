"""NVML by the names of its functions, and the meaning of its errors for a metric."""

from __future__ import annotations

import ctypes
from typing import Any

from fedmon.node.collectors.base import CollectorUnavailableError, Why

_SONAME = "libnvidia-ml.so.1"
NO_VALUE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE_ulonglong of nvml.h: a number that the driver does not have."""
_FINAL = frozenset(
    {
        *("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED", "NO_PERMISSION"),
        "INVALID_ARGUMENT",  # a link or policy that a card does not have
    }
)
"""Error names of nvml.h, without NVML_ERROR_, of a device that will not answer a query, if it never did."""
_LOST = frozenset({"GPU_IS_LOST", "GPU_NOT_FOUND", "RESET_REQUIRED", "UNINITIALIZED"})
"""Those of a device that is gone, or of NVML shut down by another part of this process."""
_WHY = {
    "NO_PERMISSION": Why.NO_PERMISSION,
    "LIBRARY_NOT_FOUND": Why.NOT_FOUND,
    "DRIVER_NOT_LOADED": Why.NOT_FOUND,
    "NOT_FOUND": Why.NOT_FOUND,
}


class RefusedError(CollectorUnavailableError):
    """NVML did not answer one call; ``error`` is its name for the error, such as NOT_SUPPORTED.

    ``is_final`` and ``is_lost`` tell whether the device will not answer it later, and whether it is gone.
    """

    def __init__(self, call: str, error: str) -> None:
        self.error, self.is_final, self.is_lost = error, error in _FINAL, error in _LOST
        why = _WHY.get(error, Why.UNSUPPORTED if self.is_final else Why.FAILED)
        super().__init__(why, f"{call}: {error.lower().replace('_', ' ')}")


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
            raise self.refusal(error.value, name) from None
        except (AttributeError, module.NVMLLibraryMismatchError):  # the module or the driver is too old for it
            raise RefusedError(name, "FUNCTION_NOT_FOUND") from None

    def refusal(self, code: int, call: str) -> RefusedError:
        """Return the error for a return code of NVML."""
        return RefusedError(call, self._names.get(code, f"error {code}"))

    def constant(self, name: str) -> int:
        """Return a constant of nvml.h. Raises RefusedError if the module is too old to know it."""
        value: int | None = getattr(self._module, name, None)
        if value is None:
            raise RefusedError(name, "FUNCTION_NOT_FOUND")
        return value

    def _argument(self, argument: object) -> object:
        is_name = isinstance(argument, str) and argument.startswith(("NVML_", "nvml"))
        return self.constant(str(argument)) if is_name else argument


def load_nvml() -> Nvml:
    """Return NVML through ``pynvml``; importing it costs 4 MB, so the driver's library is looked for first.

    Raises CollectorUnavailableError without a driver.
    """
    try:
        ctypes.CDLL(_SONAME)
    except OSError:
        raise CollectorUnavailableError(Why.NOT_FOUND, f"{_SONAME}: no NVIDIA driver on this machine") from None
    import pynvml

    return Nvml(pynvml)
