"""Results of plans: fetched if they are not in the outcome, checked, and unpacked; nothing in them is trusted."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import io
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from fedmon.common.errors import FedmonError
from fedmon.common.ids import NodeId
from fedmon.common.log import escape_control
from fedmon.common.settings import RepositorySettings
from fedmon.common.wire.runs import Parcel
from fedmon.researcher.runs.errors import MissingNumpyError

MAX_RESULT_BYTES = 2**30
"""Of one node, unless the run was given another limit: a node cannot make us fetch more."""
AT_ONCE = 4
SLOWEST_BYTES_S = 1_000_000.0
"""A file that comes slower than this, beyond a minute, is given up."""


class BadResultError(FedmonError):
    """The result of a node cannot be used; the message says why."""


class Results:
    """The results of one run, each opened once. Safe from any thread."""

    def __init__(self, repository: RepositorySettings, *, max_bytes: int | None) -> None:
        self._repository = repository
        self._max_bytes = MAX_RESULT_BYTES if max_bytes is None else max_bytes
        self._known: dict[NodeId, dict[str, Any] | str] = {}

    def open(
        self, parcels: Mapping[NodeId, Parcel | None], *, timeout_s: float | None
    ) -> tuple[dict[NodeId, dict[str, Any]], dict[NodeId, str]]:
        """Return the values of each node, and why there are none of the others."""

        def open_one(node_id: NodeId) -> None:
            try:
                values = opened(parcels[node_id], self._repository, max_bytes=self._max_bytes, timeout_s=timeout_s)
            except MissingNumpyError:
                raise
            except FedmonError as error:
                self._known[node_id] = f"its result was dropped: {escape_control(str(error))}"
            else:
                self._known[node_id] = values

        new = [node_id for node_id in parcels if node_id not in self._known]
        _each(open_one, new, fetched=any(parcel is not None and parcel.url for parcel in parcels.values()))
        known = {node_id: self._known[node_id] for node_id in parcels}
        return (
            {node_id: values for node_id, values in known.items() if not isinstance(values, str)},
            {node_id: reason for node_id, reason in known.items() if isinstance(reason, str)},
        )


def opened(
    parcel: Parcel | None, repository: RepositorySettings, *, max_bytes: int, timeout_s: float | None
) -> dict[str, Any]:
    """Return the values in a parcel. Raises BadResultError, RepositoryError, InvalidInputError or MissingNumpyError."""
    if parcel is None:
        raise BadResultError("the node keeps it no more, or does not answer")
    if parcel.size_bytes > max_bytes:
        raise BadResultError(
            f"it has {parcel.size_bytes} bytes, and {max_bytes} are taken; `limits` with output_bytes allow more"
        )
    content = _content(parcel, repository, timeout_s)
    if len(content) != parcel.size_bytes:
        raise BadResultError(f"it has {len(content)} bytes, not the {parcel.size_bytes} that were announced")
    if parcel.url is None and (found := hashlib.sha256(content).hexdigest()) != parcel.sha256:
        raise BadResultError(f"its digest is {found[:12]}, not {parcel.sha256[:12]} as announced")
    from fedmon.plan import parcel_check, parcels

    parcel_check.check(parcel.format, content, max_bytes)
    if parcel.format == "npz" and importlib.util.find_spec("numpy") is None:
        raise MissingNumpyError("the result holds arrays, which need numpy: pip install 'fedmon[runs]'")
    return parcels.unpack(parcel.format, content)


def _content(parcel: Parcel, repository: RepositorySettings, timeout_s: float | None) -> memoryview:
    """Return the bytes, in memory that arrays can be written to; those of a file have the digest."""
    given = [one for one in (parcel.json, parcel.base64, parcel.url) if one is not None]
    if len(given) != 1:
        raise BadResultError(f"it is given in {len(given)} ways; one was expected")
    if parcel.json is not None:
        return memoryview(bytearray(parcel.json.encode("utf-8", "surrogatepass")))
    if parcel.base64 is not None:
        try:
            return memoryview(bytearray(base64.b64decode(parcel.base64, validate=True)))
        except (binascii.Error, ValueError):
            raise BadResultError("it is no base64") from None
    from fedmon.common.http import download_to

    file = io.BytesIO()
    patience_s = 60.0 + parcel.size_bytes / SLOWEST_BYTES_S
    download_to(
        file,
        given[0],
        sha256=parcel.sha256,
        size_bytes=parcel.size_bytes,
        max_bytes=parcel.size_bytes,
        deadline_s=patience_s if timeout_s is None else min(patience_s, timeout_s),
        allowed_urls=trusted_urls(repository),
    )
    return file.getbuffer()


def trusted_urls(repository: RepositorySettings) -> list[str]:
    """Return from where files are fetched: the allowed URLs of the settings, and our own repository."""
    if repository.url is None:
        return list(repository.allowed_urls)
    split = urlsplit(repository.url)
    path = split.path.rstrip("/").removesuffix("/upload")
    return [*repository.allowed_urls, f"{split.scheme}://{split.netloc}{path}/"]


def _each(work: Callable[[NodeId], None], nodes: Iterable[NodeId], *, fetched: bool) -> None:
    """Do it for each; a few at a time if files are fetched, and Ctrl-C does not wait for them."""
    if not fetched:
        for node_id in nodes:
            work(node_id)
        return
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fedmon-results")
    try:
        for done in [pool.submit(work, node_id) for node_id in nodes]:
            done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
