"""Feed of a metrics store such as VictoriaMetrics from a recording, which buffers while the store is away."""

from __future__ import annotations

import contextlib
import functools
import logging
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from fedmon.common.backoff import Backoff
from fedmon.common.errors import FedmonError, InvalidInputError, SettingsError, StorageError, untrusted
from fedmon.common.files import storage_errors, write_whole
from fedmon.common.metrics.sample import Batch
from fedmon.common.metrics.series import split_series, with_origin
from fedmon.common.settings.values import StoreSettings
from fedmon.common.store.recording import DROPPED_HERE, RecordedStream, Recording
from fedmon.common.store.recording_file import Key
from fedmon.common.text import one_line, shorten

if TYPE_CHECKING:
    from http.client import HTTPConnection

logger = logging.getLogger(__name__)

IMPORT_PATH = "/api/v1/import"
"""Source: VictoriaMetrics, "How to import data in JSON line format"; the cluster's insert URL takes the same path."""
SENT_SUFFIX = ".sent"
EVERY_S = 1.0
BODY_BYTES = 4 * 1024 * 1024
"""One request carries about this much; a store takes it in some 50 ms."""
LOOK_EVERY_S = 15.0
"""Seconds between looks at the whole recording and reports of presence and losses: a query looks back 5 min."""
MOST_HEADS = 100_000
MOST_ANSWER_BYTES = 65_536
LAST_T = 253_402_300_800.0
"""The year 10000, in Unix seconds."""
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
ANSWER_S = 60.0
SETTLED_S = 30.0
"""A killed store loses the samples of the last seconds (VictoriaMetrics: five), so they are sent again."""
STOP_WITHIN_S = 10.0


class StoreCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the push began.

    ``sent`` and ``values`` are samples and values that the store took, repeated ones too. ``waiting`` samples are not
    taken yet; the recording's size bound dropped ``dropped`` ones before. ``left_out`` values have a name or time that
    no store takes. ``error`` is the current one.
    """

    sent: int
    values: int
    waiting: int
    dropped: int
    left_out: int
    error: str


class StorePush:
    """Sends the samples of a recording, and later ones, to a store until `stop`. Safe from any thread.

    After a lost connection or a restart it sends the samples of the last 30 s before again, since a store that is
    killed forgets them; a store that deduplicates keeps each once. ``PATH.sent`` beside the recording holds the
    positions. ``url`` is that of `import_url`. ``is_online`` maps each known node to whether it is online. ``newest``
    has boot, last number and time of the samples just stored by node and stream; without it, each turn looks at the
    whole recording. Raises SettingsError if a token cannot be read or sent, or for a ``ca_file`` without certificates.
    """

    def __init__(
        self,
        path: Path,
        url: str,
        settings: StoreSettings,
        *,
        is_online: Callable[[], Mapping[str, bool]],
        newest: Mapping[tuple[str, str], tuple[int, int, float]] | None = None,
    ) -> None:
        if not (settings.token() or "").isascii():
            raise SettingsError(f"token file {settings.token_file} holds characters that HTTP cannot carry")
        self.url, self._path, self._sent_path = url, path, path.with_name(path.name + SENT_SUFFIX)
        self._settings, self._is_online, self._newest = settings, is_online, newest
        self._settled = _read_positions(self._sent_path, self.url)
        self._trusted = _trusted(settings.ca_file) if urlsplit(url).scheme == "https" else None
        self._sent = dict(self._settled)
        self._taken: deque[tuple[float, dict[Key, int]]] = deque()
        self._connection: HTTPConnection | None = None
        self._headers: dict[str, str] = {}
        self._recording: Recording | None = None
        self._inode = 0
        self._samples = self._values = self._waiting = self._left_out = 0
        self._error = ""
        self._lost: Counter[tuple[str, str]] = Counter()
        self._dropped_of: Counter[tuple[str, str]] = Counter()
        self._look_at = self._report_at = 0.0
        self._extents: list[RecordedStream] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fedmon-store", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> StoreCounts:
        """The counters so far."""
        return StoreCounts(
            sent=self._samples,
            values=self._values,
            waiting=self._waiting,
            dropped=self._dropped_of.total(),
            left_out=self._left_out,
            error=self._error,
        )

    def stop(self) -> bool:
        """Send the rest of the recording, and stop; returns whether the store took everything within 10 s."""
        self._stopping.set()
        self._thread.join(STOP_WITHIN_S)
        return not self._thread.is_alive() and not self._waiting and not self._error

    # --- the thread of the store -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._error = f"the push ended: {type(error).__name__}: {error}"
            raise
        finally:
            self._disconnect()
            self._close()

    def _serve(self) -> None:
        from http.client import HTTPException

        retry = Backoff(FIRST_RETRY_S, longest_s=LONGEST_RETRY_S, jitter=0.2)
        last_turn = False
        while not last_turn:
            last_turn = self._stopping.is_set()
            pause_s = EVERY_S
            try:
                self._push()
                retry.reset()
                if self._error:
                    logger.warning("the store %s takes samples again", self.url)
                    self._error = ""
            except (OSError, HTTPException, FedmonError) as error:
                self._failed(error)
                pause_s = retry.next_s()
            self._stopping.wait(pause_s)

    def _push(self) -> None:
        """Send every sample that the store does not have yet, oldest first within a stream."""
        recording = self._opened()
        is_look_due = self._stopping.is_set() or time.monotonic() >= self._look_at
        if is_look_due or self._newest is None:
            self._look(recording.extents())
            ends = {_key(one): one.last_seq for one in self._extents}
        else:
            ends = {(node_id, stream, boot): seq for (node_id, stream), (boot, seq, _) in list(self._newest.items())}
        for body, samples, values, positions in self._bodies(recording, ends):
            self._post(body)
            self._taken.append((time.monotonic(), positions))
            self._sent |= positions
            self._samples += samples
            self._values += values
            self._waiting = max(0, self._waiting - samples)
            # A backlog may take hours: what is settled stays so if a later request fails.
            self._settle()
            if time.monotonic() >= self._report_at:
                self._report(recording)
        self._settle()
        if is_look_due:
            self._report(recording)
            self._look_at = self._report_at

    def _report(self, recording: Recording) -> None:
        """Write the settled positions, and send presence and losses."""
        _write_positions(self._sent_path, self.url, self._settled)
        self._post(b"".join(self._state(recording)))
        self._report_at = time.monotonic() + LOOK_EVERY_S

    def _opened(self) -> Recording:
        """Return the recording, opened again if another file replaced it."""
        inode = self._path.stat().st_ino
        if self._recording is None or inode != self._inode:
            self._close()
            self._recording, self._inode = Recording(self._path, read_only=True), inode
        return self._recording

    def _close(self) -> None:
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    def _settle(self) -> None:
        """Note the positions that the store had time to write to its disk."""
        now = time.monotonic()
        while self._taken and self._taken[0][0] < now - SETTLED_S:
            for key, seq in self._taken.popleft()[1].items():
                self._settled[key] = max(seq, self._settled.get(key, -1))

    def _look(self, extents: list[RecordedStream]) -> None:
        """Count waiting samples and those dropped before they were sent; forget streams that the recording lacks."""
        self._waiting = 0
        present = {_key(one) for one in extents}
        for gone in self._extents:
            if _key(gone) not in present:
                self._dropped_of[gone.node_id, gone.stream] += self._unsent(gone)
        self._extents = extents
        for positions in (self._sent, self._settled):
            for key in positions.keys() - present:
                del positions[key]
        for extent in extents:
            key = _key(extent)
            for positions in (self._sent, self._settled):
                positions.setdefault(key, extent.oldest_seq - 1)
            if extent.oldest_seq > self._next(key):
                self._dropped_of[key[:2]] += extent.oldest_seq - self._next(key)
                self._sent[key] = self._settled[key] = extent.oldest_seq - 1
            self._waiting += self._unsent(extent)

    def _unsent(self, extent: RecordedStream) -> int:
        next_seq = self._next(_key(extent))
        return sum(max(0, last - max(first, next_seq) + 1) for first, last in extent.ranges)

    def _bodies(
        self, recording: Recording, ends: Mapping[Key, int]
    ) -> Iterator[tuple[bytes, int, int, dict[Key, int]]]:
        """Return bodies with their number of samples and values, and the positions that they reach."""
        lines: list[bytes] = []
        size_bytes = samples = values = 0
        positions: dict[Key, int] = {}
        for key, last_seq in ends.items():
            node_id, stream, boot = key
            if last_seq < self._next(key):
                continue
            for batch in recording.read(node_id, boot, stream, first_seq=self._next(key)):
                for line, count in self._lines(batch):
                    lines.append(line)
                    size_bytes += len(line)
                    values += count
                samples += len(batch.t)
                positions[key] = batch.last_seq
                if size_bytes >= BODY_BYTES:
                    yield b"".join(lines), samples, values, positions
                    lines, size_bytes, samples, values, positions = [], 0, 0, 0, {}
        if positions:
            yield b"".join(lines), samples, values, positions

    def _next(self, key: Key) -> int:
        return self._sent.get(key, -1) + 1

    def _lines(self, batch: Batch) -> Iterator[tuple[bytes, int]]:
        """Return one line a series, and its number of values."""
        moments = [round(t * 1000) for t in batch.t if abs(t) < LAST_T]
        if len(moments) < len(batch.t):
            self._leave_out(batch, f"time {max(batch.t):g}", len(batch.columns) * len(batch.t))
            return
        all_moments = msgspec.json.encode(moments)
        for series, column in batch.columns.items():
            try:
                head = _head(batch.node_id, batch.stream, series)
            except ValueError:
                self._leave_out(batch, f"series {series[:100]!r}", len(column))
                continue
            if None in column:
                known = [(value, moment) for value, moment in zip(column, moments, strict=True) if value is not None]
                if known:
                    values, times = zip(*known, strict=True)
                    yield _line(head, msgspec.json.encode(values), msgspec.json.encode(times)), len(known)
            else:
                yield _line(head, msgspec.json.encode(column), all_moments), len(column)

    def _leave_out(self, batch: Batch, what: str, values: int) -> None:
        if not self._left_out:
            logger.warning("no store takes %s of node %s: left out, as are later ones", what, batch.node_id)
        self._left_out += values

    def _state(self, recording: Recording) -> Iterator[bytes]:
        """Return lines of presence and of losses."""
        now = msgspec.json.encode([round(time.time() * 1000)])
        for node_id, is_online in self._is_online().items():
            yield _line(_encoded_head("fedmon_node_online", node=node_id), b"[1]" if is_online else b"[0]", now)
        lost = Counter(self._dropped_of)
        for extent in self._extents:
            ranges = recording.lost(extent.node_id, extent.boot, extent.stream)
            lost[extent.node_id, extent.stream] += sum(
                one.last_seq - one.first_seq + 1 for one in ranges if one.reason != DROPPED_HERE
            )
        # A counter must not fall when the recording forgets its oldest samples.
        for of, number in lost.items():
            self._lost[of] = max(number, self._lost[of])
        for (node_id, stream), number in self._lost.items():
            yield _line(_encoded_head("fedmon_samples_lost_total", node=node_id, stream=stream), b"[%d]" % number, now)

    def _post(self, body: bytes) -> None:
        if not body:
            return
        connection = self._connected()
        connection.request("POST", urlsplit(self.url).path, body, self._headers)
        answer = connection.getresponse()
        text = answer.read(MOST_ANSWER_BYTES)
        if answer.will_close or not answer.isclosed():
            self._disconnect()  # as announced, so nothing was lost
        if answer.status not in (200, 204):
            raise StoreRefusedError(answer.status, text.decode(errors="replace"))

    def _connected(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        if self._connection is None:
            parts, token = urlsplit(self.url), self._settings.token()
            host, port = parts.hostname or "", parts.port
            self._headers = {"Content-Type": "application/json"}
            if token:
                self._headers["Authorization"] = f"Bearer {token}"
            kind = functools.partial(HTTPSConnection, context=self._trusted) if self._trusted else HTTPConnection
            self._connection = kind(host, port, timeout=ANSWER_S)
            # Else a lost connection would be opened again without a word, and with it what the store forgot.
            self._connection.connect()
            self._connection.auto_open = 0
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _failed(self, error: Exception) -> None:
        self._disconnect()
        self._close()
        self._sent = dict(self._settled)
        self._taken.clear()
        self._look_at = 0.0
        text = f"{self.url}: {_reason(error)}"
        if not self._error:
            logger.error("samples wait in %s and are sent again: %s", self._path, text)
        self._error = text


class StoreRefusedError(StorageError):
    """The store answered a request with an error."""

    def __init__(self, http_status: int, text: str) -> None:
        proof = "; name a file with its token in [store] token_file"
        address = "; give the URL of VictoriaMetrics, or of a cluster's vminsert and its [store] tenant"
        remedy = {
            3: "; give the URL that it redirects to",
            5: "; look at its disk and its log",
            400: address,
            401: proof,
            403: proof,
            404: address,
            413: "; let the proxy in front of it take bodies of 8 MiB",
        }
        said = remedy.get(http_status, remedy.get(http_status // 100, ""))
        super().__init__(f"answered {http_status}: {shorten(one_line(text), 200) or 'no reason given'}{said}")


def import_url(url: str, *, tenant: str | None = None) -> str:
    """Return the import address of a store's URL, in a cluster that of a tenant. Raises InvalidInputError."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isascii()
        (parts.hostname or "").encode("idna")
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInputError(
            f"{url!r} is not the URL of a store: write http://host:8428, or https://host:8480/insert/0/prometheus"
        )
    address = url.rstrip("/").removesuffix(IMPORT_PATH)
    if tenant is not None:
        if "/insert/" in parts.path:
            raise InvalidInputError(f"{url!r} names a tenant, as [store] tenant does: remove one of the two")
        address += f"/insert/{tenant}/prometheus"
    return address + IMPORT_PATH


def _trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Return whose certificates a store may have."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        cause = error.strerror or str(error)
        raise SettingsError(
            f"ca_file {ca_file} in [store] cannot be used: {cause}; it must hold certificates (PEM)"
        ) from error


def _key(extent: RecordedStream) -> Key:
    return extent.node_id, extent.stream, extent.boot


@functools.lru_cache(maxsize=MOST_HEADS)
def _head(node_id: str, stream: str, series: str) -> bytes:
    name, own = split_series(series)
    return _encoded_head(name, **with_origin(own, node=node_id, stream=stream))


def _encoded_head(name: str, /, **labels: str) -> bytes:
    return b'{"metric":' + msgspec.json.encode({**labels, "__name__": name})


def _line(head: bytes, values: bytes, moments: bytes) -> bytes:
    return head + b',"values":' + values + b',"timestamps":' + moments + b"}\n"


def _reason(error: Exception) -> str:
    if isinstance(error, FedmonError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return untrusted(error.verify_code, error.verify_message, "name the right ca_file in [store]")
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return f"not reached: {cause[:200]}; does it run, and is the URL right?"


class _Positions(msgspec.Struct, frozen=True, kw_only=True):
    """The file of positions beside a recording; another URL begins again."""

    url: str
    sent: list[tuple[str, str, int, int]]


def _read_positions(path: Path, url: str) -> dict[Key, int]:
    try:
        with storage_errors(path, "read"), contextlib.suppress(FileNotFoundError):
            found = msgspec.json.decode(path.read_bytes(), type=_Positions)
            return {(node, stream, boot): seq for node, stream, boot, seq in found.sent if found.url == url}
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The store removes the samples that come twice.
        logger.warning("%s is damaged: everything in the recording is sent again", path)
    return {}


def _write_positions(path: Path, url: str, sent: Mapping[Key, int]) -> None:
    positions = _Positions(url=url, sent=[(*key, seq) for key, seq in sent.items()])
    write_whole(path, msgspec.json.encode(positions), mode=0o600)
