"""Random choices that can be made once more."""

from __future__ import annotations

import os
import random


def seeded() -> random.Random:
    """Return random choices, whose seed is in the output of a test that fails; TEST_SEED gives another one."""
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"seed {seed}")
    return random.Random(seed)
