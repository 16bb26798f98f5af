"""See, ask and steer machines you cannot log in to."""

from __future__ import annotations

# A plan imports this file before it runs; typing and importlib would cost it more than all else together.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fedmon.common import __version__
    from fedmon.common.errors import FedmonError
    from fedmon.common.training_plan import TrainingPlan
    from fedmon.compat.nebula import Reporter
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.requests import Requests
    from fedmon.researcher.runs.errors import RunFailedError, RunHeldError, RunNotOverError

__all__ = [
    "Federation",
    "FedmonError",
    "Reporter",
    "Requests",
    "RunFailedError",
    "RunHeldError",
    "RunNotOverError",
    "TrainingPlan",
    "__version__",
]

_LAZY = {
    "Federation": "fedmon.researcher.federation",
    "FedmonError": "fedmon.common.errors",
    "Reporter": "fedmon.compat.nebula",
    "Requests": "fedmon.researcher.requests",
    "RunFailedError": "fedmon.researcher.runs.errors",
    "RunHeldError": "fedmon.researcher.runs.errors",
    "RunNotOverError": "fedmon.researcher.runs.errors",
    "TrainingPlan": "fedmon.common.training_plan",
    "__version__": "fedmon.common",
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use, so that a node never loads a researcher's modules."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
