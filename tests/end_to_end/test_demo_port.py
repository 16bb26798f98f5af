"""Where a demo that is kept is found."""

from __future__ import annotations

import contextlib

from fedmon.broker.errors import PortInUseError
from fedmon.broker.ports import listening
from fedmon.demo.cli import USUAL_PORT, _broker


def test_a_demo_that_stays_is_on_the_usual_port_or_on_a_free_one_where_that_is_taken() -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(PortInUseError):
            stack.enter_context(listening("127.0.0.1", USUAL_PORT))
        aside = _broker(stack, keep=True)

        assert aside.port != USUAL_PORT

    with contextlib.ExitStack() as stack:
        first, second = _broker(stack, keep=True), _broker(stack, keep=True)

        assert first.port != second.port
