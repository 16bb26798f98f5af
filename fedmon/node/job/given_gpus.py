"""Which GPUs of this host a job was given: what the environment of its processes tells."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WHOLE_MACHINE = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Numbers as the driver counts. CUDA's begin at 0 for each job where its cgroup hides the other GPUs."""
_NONE_GIVEN = ("", "-1", "NoDevFiles", "none", "void")
_RANGE = re.compile(r"([0-9]{1,4})-([0-9]{1,4})")
_NAME = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[A-Za-z0-9/-]{1,80}")
_MOST = 64


def given_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs by the driver's number or by UUID; None when nobody told, or in words that are not understood.

    Sources: SLURM's manual of srun, "output environment variables"; CUDA programming guide, "CUDA_VISIBLE_DEVICES".
    """
    for name in (*_WHOLE_MACHINE, "CUDA_VISIBLE_DEVICES"):
        text = environ.get(name)
        if text is not None and len(text) <= 8192:
            return () if text.strip() in _NONE_GIVEN else _named(text)
    return None


def _named(text: str) -> tuple[str, ...] | None:
    found: list[str] = []
    for part in text.split(","):
        word = part.strip()
        if span := _RANGE.fullmatch(word):
            found += map(str, range(int(span[1]), min(int(span[2]), int(span[1]) + _MOST) + 1))
        elif _NAME.fullmatch(word):
            found.append(word)
        else:
            return None
    return tuple(dict.fromkeys(found))[:_MOST]
