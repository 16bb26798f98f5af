"""A process that records for ever and says what was stored; killed by its test.

Run as a module with a file and the first number; a line ``N`` says that samples up to N are stored.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedmon.common.store.recording import Recording
from tests.common.store.recordings import batch


def main(path: Path, first: int) -> None:
    """Store, and merge in between."""
    with Recording(path, max_bytes=8 * 2**20) as recording:
        while True:
            recording.append([batch(first), batch(first, stream="user")])
            first += 10
            os.write(1, f"{first - 1}\n".encode())
            recording.maintain()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
