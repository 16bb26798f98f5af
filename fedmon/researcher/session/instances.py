"""Which of a researcher's processes this one is: ``main``, which holds the queue on disk, or one of the others."""

from __future__ import annotations

import secrets
from pathlib import Path

from fedmon.common.errors import FolderInUseError
from fedmon.common.ids import MAIN_INSTANCE, InstanceId
from fedmon.common.store.queue import TasksQueue
from fedmon.researcher.replies.replies import MAX_KEPT

QUEUES_FOLDER = "replies"


def claim_instance(folder: Path, researcher_id: str, *, wanted: str | None) -> tuple[InstanceId, TasksQueue | None]:
    """Return the instance that this process is, and the queue on disk when it is ``main``.

    Without a wish it is ``main`` when no other process is, else a random name. Raises FolderInUseError when ``main``
    is wanted and taken, StorageError when the folder cannot be used.
    """
    if wanted not in (None, MAIN_INSTANCE):
        return InstanceId(wanted), None
    try:
        # What is kept is bounded by `Replies`; the file has room for what callers still wait for as well.
        return MAIN_INSTANCE, TasksQueue(folder / QUEUES_FOLDER / researcher_id, max_items=2 * MAX_KEPT)
    except FolderInUseError:
        if wanted is not None:
            raise
        return InstanceId(secrets.token_hex(4)), None
