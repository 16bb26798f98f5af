"""The node daemon: puts the parts together, connects, and stops in order.

Threads: the worker owns the registers and runs the router; the transport connects; the sampler measures; the control
server lets the owner in; checker and fetcher do what is slow. None of them waits for another but the main one.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from fedmon import __version__
from fedmon.common.clock import Deadline, utc_now
from fedmon.common.errors import FedmonError, InvalidMessageError
from fedmon.common.ids import kept_client_id
from fedmon.common.log import OutgoingLogHandler, configure_cli_logging
from fedmon.common.settings import NodeSettings, load_node
from fedmon.common.wire import codec, topics
from fedmon.common.wire.connection import BrokerConnection, Link
from fedmon.common.wire.messages import LogRecord
from fedmon.node.assembly import Assembly
from fedmon.node.folder import NodeFolder
from fedmon.node.presence import REFRESH_S, PresenceKeeper
from fedmon.node.requests.dialect import Outgoing
from fedmon.node.worker import Worker

# By name, since this module is the program that runs, and would log outside of fedmon as "__main__".
logger = logging.getLogger("fedmon.node.daemon")

STOP_WITHIN_S = 4.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Daemon:
    """One running node."""

    def __init__(self, folder: NodeFolder, settings: NodeSettings) -> None:
        self.folder, self.settings = folder, settings
        self.started = utc_now()
        self.link: Link | None = None
        self.link_since = ""
        self._finished = threading.Event()
        self._signals = 0
        self.failure: FedmonError | None = None
        self.worker = Worker("fedmon-router", self._on_start)
        self.presence = PresenceKeeper(
            folder,
            node_id=settings.id,
            agent_version=__version__,
            capabilities=lambda: self.parts.capabilities,
            streams=lambda: self.parts.pipeline.streams,
            publish=lambda topic, payload: self.transport.publish(topic, payload, qos=1, retain=True),
        )
        self.parts = Assembly(
            folder, settings, boot=self.presence.raise_boot(), hand_over=self.worker.post,
            publish=self._publish_metrics, send=self._send,
        )  # fmt: skip
        self.transport = BrokerConnection(
            settings.broker,
            client_id=kept_client_id(folder.path, settings.id),
            subscriptions=[*self.parts.dialect.subscriptions(settings.id), (topics.status(settings.id), 0)],
            on_message=self._on_message,
            on_link=self._on_link,
            will=self.presence.will,
            id_is_contested=lambda: self.presence.duplicate is not None,
            keeps_session=True,
        )
        self._logs = OutgoingLogHandler(self._send_log, level=_log_level(settings))

    def run(self) -> None:
        """Serve until a signal comes, or until the node cannot go on. Raises what ended it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, self._on_hangup)
        # Threads inherit the mask: the kernel may hand a signal to any thread that takes it, and only this one, which
        # sleeps until its end, would be woken by it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        logging.getLogger("fedmon").addHandler(self._logs)
        self.worker.every(REFRESH_S, self.presence.refresh)
        for step in (self.parts.services.leases.apply, self.parts.services.audit.sync, self.parts.runs.tick):
            self.worker.every(1.0, step)
        self.worker.every(3600.0, self.parts.services.purge)
        self.worker.every(3600.0, self.parts.runs.purge)
        self.worker.every(3600.0, self.parts.copy_register)
        self.worker.start()
        try:
            self.parts.start(self)
            self.transport.start()
        except FedmonError as error:
            self.failure = error
            self._finished.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if self.parts.services.policy.obeys_nobody:
            logger.warning(
                "node %s obeys nobody yet: every request is refused; allow a researcher with: "
                "fedmon node policy allow RESEARCHER --dir %s", self.settings.id, self.folder.path,
            )  # fmt: skip
        while not self._finished.wait():
            pass
        self._stop()
        if self.failure is not None:
            raise self.failure

    def reload(self) -> None:
        """Read the settings again; a bad file changes nothing. On the worker's thread. Raises SettingsError."""
        self.follow(load_node(self.folder.path, os.environ))
        self.parts.services.audit.record("settings-reloaded")
        logger.info("settings read again from %s", self.folder.settings_file)

    def follow(self, settings: NodeSettings) -> None:
        """Obey other rules from now on; on the worker's thread. Id and broker stay until the next start."""
        self.settings = settings
        self._logs.setLevel(_log_level(settings))
        self.parts.obey(settings)

    def counters(self) -> dict[str, int]:
        """Return what was served, refused, published and dropped since the start."""
        return {
            **self.parts.router.counters,
            **self.parts.pipeline.counters(),
            "messages_dropped": self.worker.dropped,
            "publishes_dropped": self.transport.dropped,
            "logs_dropped": self._logs.dropped,
        }

    # --- called on other threads: they put and return --------------------------------------------------------------

    def _on_message(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001  # the transport's shape
        # What is over the limit is refused by its length alone; its bytes need not wait for that.
        payload = payload[: codec.MAX_PAYLOAD_BYTES + 1]
        if topic == topics.status(self.settings.id):
            self.worker.offer(lambda: self.presence.correct(payload, retained=retained), size_bytes=len(payload))
        else:
            self.worker.offer(
                lambda: self.parts.router.receive(topic, payload, retained=retained), size_bytes=len(payload)
            )

    def _on_link(self, link: Link) -> None:
        self.link = link
        self.link_since = utc_now().isoformat(timespec="seconds")
        if link.up:
            self.worker.post(self._on_up)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        self._finished.set()

    def _on_hangup(self, _number: int, _frame: object) -> None:
        self.worker.post(self._reload_or_say)

    def _send(self, outgoing: Outgoing) -> bool:
        return self.transport.publish(outgoing.topic, outgoing.payload, qos=outgoing.qos)

    def _publish_metrics(self, payload: bytes) -> bool:
        flat = self.settings.monitoring_topic == "flat"
        topic = topics.MONITORING_FLAT if flat else topics.monitoring(self.settings.id)
        return self.transport.publish(topic, payload, qos=0)

    def _send_log(self, level: str, name: str, text: str, _created: float) -> None:
        services = self.parts.services
        if not services.policy.log_leaves(level) or not self.transport.is_connected:
            return
        record = LogRecord(
            node_id=self.settings.id,
            boot=self.presence.boot,
            time=utc_now(),
            level=level,  # type: ignore[arg-type]  # the level names of Python's logging
            logger=name[:256],
            msg=text[:16_000],
        )
        with contextlib.suppress(InvalidMessageError):
            if self._send(self.parts.dialect.log(record)):
                services.audit.count("logs", f"{name} {level}")

    # --- on the worker's thread --------------------------------------------------------------------------------------

    def _on_start(self) -> None:
        self.parts.services.database.adopt()

    def _on_up(self) -> None:
        self.parts.reconnected(self.presence.boot)
        self.presence.announce()
        self.parts.router.push()

    def _reload_or_say(self) -> None:
        try:
            self.reload()
        except FedmonError as error:
            logger.error("the settings stay as they were: %s", error)  # noqa: TRY400  # the sentence says it all

    def _stop(self) -> None:
        deadline = Deadline(STOP_WITHIN_S)
        reason = "stopped by its owner" if self.failure is None else str(self.failure)[:200]
        logging.getLogger("fedmon").removeHandler(self._logs)
        self.parts.stop_measuring()
        # Requests that were heard are still answered before the farewell.
        with contextlib.suppress(FedmonError):
            self.worker.call(lambda: None, timeout_s=min(1.5, deadline.left_s()))
        self.transport.stop(min(2.0, deadline.left_s()), farewell=self.presence.farewell(reason))
        self.parts.stop(deadline.left_s())
        self.worker.post(self.parts.close)
        if not self.worker.stop(deadline.left_s()):
            logger.error("the node did not end in order within %.1f s", STOP_WITHIN_S)
            os._exit(1)


def _log_level(settings: NodeSettings) -> int:
    if settings.policy.log_level == "NONE":
        return logging.CRITICAL + 1
    return logging.getLevelNamesMapping()[settings.policy.log_level]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the node of a folder in the foreground; what `fedmon node start` becomes."""
    parser = argparse.ArgumentParser(prog="fedmon node start", description="Run the node of a folder.")
    parser.add_argument("--dir", type=Path, required=True, help="The node's folder.")
    parser.add_argument("--log-level", default="INFO", help="The lowest level that is shown here.")
    options = parser.parse_args(argv)
    configure_cli_logging(options.log_level)
    try:
        folder = NodeFolder.open(options.dir)
        with folder.hold("daemon"):
            Daemon(folder, load_node(folder.path, os.environ)).run()
    except FedmonError as error:
        print(f"fedmon: {error}", file=sys.stderr)  # noqa: T201  # the last word of a program, not of a library
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
