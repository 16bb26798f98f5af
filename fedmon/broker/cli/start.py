"""The shell verb ``fedmon broker start``."""

from __future__ import annotations

import pathlib
import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer

from fedmon.broker.cli.output import DataDir, Json, emit
from fedmon.broker.configuration import Access
from fedmon.broker.engine import Engine, EngineName, MosquittoEngine, choose_engine
from fedmon.broker.errors import BrokerError, BrokerStartError
from fedmon.broker.folder import BrokerFolder, default_folder
from fedmon.broker.ports import is_loopback
from fedmon.broker.roles import Role
from fedmon.broker.users import Users


def start(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every address, and then users are needed.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65536 - len(Role),
            help="Port to listen on; 0 picks a free one. With users: nodes on this port, researchers, "
            "monitors, admins and jobs on the four above it.",
        ),
    ] = 1883,
    data_dir: DataDir = None,
    engine: Annotated[
        EngineName, typer.Option(help="mosquitto, embedded, or auto: mosquitto when it is installed.")
    ] = "auto",
    client_certificates: Annotated[
        bool,
        typer.Option(
            "--client-certificates",
            help="Nodes and researchers log in with certificates of certificates/<role>s-ca.crt instead of passwords.",
        ),
    ] = False,
    print_url: Annotated[
        bool, typer.Option("--print-url", help="Print the address for nodes and nothing else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM; SIGHUP makes it read its users again.

    It has users when `fedmon broker user add` made some in its folder, and TLS when certificates/broker.crt and
    broker.key lie there. Exit codes: 0 stopped as asked, 1 failed, 3 engine not installed, 4 port or folder in use, or
    open to the network without users.
    """
    folder = BrokerFolder(data_dir or default_folder())
    folder.make()
    broker = _made(folder.path, host, port, engine, client_certificates=client_certificates)
    with folder.running(has_users=broker.has_users), _Signals(broker):
        try:
            broker.start()
            if print_url:
                print(broker.url, flush=True)
            else:
                emit(_facts(broker, folder), _announcement(broker, folder), as_json=as_json)
            broker.wait()
        except _Stopped:
            return
        finally:
            broker.stop()
    raise BrokerStartError(f"the {broker.name} broker ended by itself; its log is {broker.log_file}")


def _made(folder: pathlib.Path, host: str, port: int, name: EngineName, *, client_certificates: bool) -> Engine:
    kind = choose_engine(name)
    if not Users(BrokerFolder(folder)).all() and not client_certificates:
        return kind(host=host, port=port, folder=folder)
    if kind is not MosquittoEngine:
        raise BrokerError(
            f"{folder} has users, and the {kind.name} broker has none: install mosquitto (Debian: apt install "
            f"mosquitto), or choose another --data-dir"
        )
    tls = (folder / "certificates" / "broker.crt").exists() or client_certificates
    access = Access(tls=tls, client_certificates=client_certificates)
    return MosquittoEngine(host=host, port=port, folder=folder, access=access)


def _facts(broker: Engine, folder: BrokerFolder) -> dict[str, Any]:
    return {
        "engine": broker.name,
        "url": broker.url,
        "urls": {role.value: broker.url_for(role) for role in Role},
        "pid": broker.pid,
        "users": broker.has_users,
        "tls": broker.has_tls,
        "limits": broker.limits,
        "data_dir": str(folder.path),
        "log_file": str(broker.log_file),
        "warnings": _warnings(broker),
    }


def _warnings(broker: Engine) -> list[str]:
    if not broker.has_users:
        return ["no users: every process of this machine may connect and say it is anybody"]
    if not broker.has_tls and not is_loopback(broker.host):
        return [
            "no TLS: passwords and messages can be read on their way; put broker.crt and broker.key into certificates"
        ]
    return []


def _announcement(broker: Engine, folder: BrokerFolder) -> str:
    lines = [f"{broker.name} broker (process {broker.pid}): {broker.limits}"]
    if broker.has_users:
        lines += [f"  {role.file_name + ':':13}{broker.url_for(role)}" for role in Role]
    else:
        lines.append(f"  {broker.url}")
    lines += [f"  {warning}" for warning in _warnings(broker)]
    lines += [
        f"  users, data and log in {folder.path}",
        f"next: fedmon node init --broker {broker.url}",
        "Ctrl-C stops.",
    ]
    return "\n".join(lines)


class _Stopped(Exception):  # noqa: N818 (an order, no error)
    """Somebody asked us to stop."""


class _Signals:
    """While entered: SIGTERM and SIGINT raise `_Stopped` in the main thread, SIGHUP has the broker reload."""

    def __init__(self, broker: Engine) -> None:
        self._broker = broker
        self._had_terminal = sys.stdin.isatty()

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)

    def __exit__(self, *_exception: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        # Stopping takes at most a few seconds and must not be cut short, or data would not be saved.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        if self._had_terminal and not sys.stdin.isatty():
            # The terminal we were started from was closed.
            self._stop(number, frame)
        elif isinstance(self._broker, MosquittoEngine):
            self._broker.reload()
