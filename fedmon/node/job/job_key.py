"""Names of jobs that are safe in streams, topics and files, made from ids as schedulers and people write them."""

from __future__ import annotations

import re

from fedmon.common.ids import ID_PATTERN, RESERVED_IDS

_DIGEST = 10
_READABLE = 40

# `123.server` or `12[3].server`, as PBS writes them; a server with a dash could be mistaken for one with a dot.
_PBS = re.compile(r"([0-9]{1,20})(\[([0-9]{0,10})\])?((?:\.[A-Za-z0-9]+)+)")
_LIKE_PBS = re.compile(r"[0-9]+(_[0-9]*)?-.*")
_LIKE_DIGEST = re.compile(r".*-h[0-9a-f]{10}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def job_key(job_id: str) -> str:
    """Return 1 to 64 letters, digits, ``_`` and ``-`` for a job id: ``123.server`` gives ``123-server``.

    Two different ids never have the same key: what is not as schedulers write ids, or looks like a key of another id,
    gets the beginning of its SHA-256 at the end.
    """
    pbs = _PBS.fullmatch(job_id)
    if pbs is not None:
        index = "" if pbs[2] is None else f"_{pbs[3]}"
        key = f"{pbs[1]}{index}{pbs[4].replace('.', '-')}"
        if ID_PATTERN.fullmatch(key) and not _LIKE_DIGEST.fullmatch(key):
            return key
    elif _is_plain(job_id):
        return job_id
    import hashlib  # takes milliseconds of a job's start, and few ids need it

    readable = _UNSAFE.sub("-", job_id[: 4 * _READABLE]).strip("-_")[:_READABLE] or "job"
    digest = hashlib.sha256(job_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{readable}-h{digest}"


def _is_plain(job_id: str) -> bool:
    """Tell whether an id is its own key: no other id is given this one, and no command takes it for an option."""
    return (
        ID_PATTERN.fullmatch(job_id) is not None
        and job_id not in RESERVED_IDS
        and not job_id.startswith("-")
        and not _LIKE_PBS.fullmatch(job_id)
        and not _LIKE_DIGEST.fullmatch(job_id)
    )
