"""The context of a running training plan: its data, its arguments, reports and logs."""

from __future__ import annotations

from fedmon.common.errors import InvalidInputError
from fedmon.plan import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fedmon.plan.dataset import PlanDataset


class PlanContext:
    """The world of a running plan.

    ``dataset`` is None if the job has none. ``arguments`` and ``inputs`` come from the researcher and belong to the
    plan; arrays among the inputs are writable. `report` and `log` may be called from any thread.
    """

    def __init__(
        self,
        *,
        job_id: str,
        node_id: str,
        dataset: PlanDataset | None,
        arguments: dict[str, Any],
        inputs: dict[str, Any],
        channel: frames.FrameChannel,
    ) -> None:
        self.job_id, self.node_id = job_id, node_id
        self.dataset, self.arguments, self.inputs = dataset, arguments, inputs
        self._channel = channel
        self._warned: set[str] = set()

    def report(self, step: int | None = None, **scalars: Any) -> None:
        """Send numbers to the researcher now, such as ``report(step=3, loss=0.25)``.

        Names are Python names of at most 64 ASCII characters, 100 at a time; values are numbers, also those of numpy,
        or None. A value that is not finite is sent as None, and a warning is logged once for its name. Raises
        InvalidInputError for a wrong name, number or step.
        """
        if len(scalars) > frames.MAX_VALUES:
            raise InvalidInputError(f"report() got {len(scalars)} names; {frames.MAX_VALUES} at a time are the most")
        values = {name: self._number(name, value) for name, value in scalars.items()}
        if step is not None:
            index = getattr(type(step), "__index__", None)
            if index is None or isinstance(step, bool) or abs(index(step)) > frames.MAX_STEP:
                raise InvalidInputError(f"report() got step {str(step)[:40]!r}; it takes an integer of at most 2**53")
            step = int(index(step))
        if values:
            self._channel.send(frames.SCALARS, {"values": values, "step": step})

    def log(self, message: object, level: str = "INFO") -> None:
        """Send a line to the log, cut to 4096 characters.

        Raises InvalidInputError for a level other than DEBUG, INFO, WARNING, ERROR and CRITICAL.
        """
        name = str(level).upper()
        if name not in frames.LEVELS:
            raise InvalidInputError(f"log() got the level {level!r}; levels are {', '.join(frames.LEVELS)}")
        text = shortened(str(message), frames.MAX_LOG_CHARACTERS)
        self._channel.send(frames.LOG, {"level": name, "message": text})

    def _number(self, name: str, value: Any) -> float | None:
        if len(name) > frames.MAX_NAME_CHARACTERS or not name.isascii() or not name.isidentifier():
            raise InvalidInputError(
                f"report() got the name {name[:80]!r}: a name has ASCII letters, digits and underscores, begins with "
                f"no digit, and has at most {frames.MAX_NAME_CHARACTERS} characters"
            )
        if value is None:
            return None
        number = value
        try:
            if not isinstance(value, int | float):  # numpy's, or an array or tensor of one number
                number = value.item()
            number = float(number) if isinstance(number, int | float) else None
        except OverflowError:
            raise InvalidInputError(f"report() got an integer as {name} that exceeds every float") from None
        except (AttributeError, TypeError, ValueError, RuntimeError):
            number = None
        if number is None:
            raise InvalidInputError(f"report() got a {type(value).__name__} as {name}; it takes numbers and None")
        if number - number == 0:  # neither NaN nor an infinity
            return float(number)
        if name not in self._warned:
            self._warned.add(name)
            self.log(f"{name} was reported as {number}, and is sent as null", level="WARNING")
        return None


def shortened(text: str, longest: int) -> str:
    """Return a text of limited length, a longer one without its middle; it can always be encoded."""
    if len(text) > longest:
        note = " [...] "
        head = (longest - len(note)) // 2
        tail = longest - len(note) - head
        text = text[:head] + note + text[len(text) - tail :]
    return text.encode("utf-8", "replace").decode()
