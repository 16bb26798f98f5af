"""How much of the work of a report is done."""

from __future__ import annotations

from collections.abc import Callable


class Steps:
    """Tells ``progress`` the share of all work, from 0 to 1, as its parts go on."""

    def __init__(self, progress: Callable[[float], object]) -> None:
        self._progress, self._before = progress, 0.0

    def part(self, share: float) -> Callable[[float], None]:
        """Begin a part that is this share of the work; call the result with how much of the part is done."""
        before, self._before = self._before, self._before + share
        return lambda done: self._tell(before + share * done)

    def counted(self, share: float, amount: int) -> Callable[[], None]:
        """Begin a part of so many equal steps; call the result after each."""
        tell, taken = self.part(share), 0

        def step() -> None:
            nonlocal taken
            taken += 1
            tell(taken / max(amount, taken))

        return step

    def done(self) -> None:
        """Tell that everything is done."""
        self._tell(1.0)

    def _tell(self, share: float) -> None:
        self._progress(min(1.0, share))
