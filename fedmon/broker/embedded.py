"""The broker rumqttd from the package iotcore, in a process of ours."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

from fedmon.broker import ports
from fedmon.broker.errors import EngineMissingError
from fedmon.broker.running import Engine


class EmbeddedEngine(Engine):
    """The broker rumqttd from the package iotcore, in a process of ours."""

    name = "embedded"
    limits = "memory only, no users and no access lists, about 100 retained messages: for demos, tests and one machine"

    @classmethod
    def available(cls) -> bool:
        """Tell whether the package iotcore is installed."""
        return importlib.util.find_spec("iotcore") is not None

    def _command(self) -> list[str]:
        if not self.available():
            raise EngineMissingError("the embedded broker needs the package iotcore: pip install 'fedmon[broker]'")
        script = pathlib.Path(__file__).resolve().with_name("embedded_server.py")
        # -P: the modules beside the script must not shadow others.
        return [sys.executable, "-P", str(script), ports.numeric_host(self.host), str(self.port)]
