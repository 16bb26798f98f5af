"""Starts one run of `fedmon job` from its words or options.

Plain words are read here, because the library that explains and refuses takes longer to load than everything else that
a job waits for. Other words, such as an option with its value in one word, a value that begins with a dash, a mistake,
or a call for help, are left to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmon.common.errors import FedmonError, InvalidInputError, NotFoundError, SettingsError
from fedmon.node.job.channel import Channel
from fedmon.node.job.identity import identify
from fedmon.node.job.options import CHECK_POINT_S, LABELS, SAMPLING_FREQ_S, JobOptions, checked

ONE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "-d": ("save_dir", Path),
    "--save_dir": ("save_dir", Path),
    "-p": ("prefix", str),
    "--prefix": ("prefix", str),
    "-l": ("launcher", str),
    "--launcher": ("launcher", str),
    "-i": ("sampling_freq", float),
    "--sampling_freq": ("sampling_freq", float),
    "-c": ("check_point", float),
    "--check_point": ("check_point", float),
    "--system": ("system", str),
    "--partition": ("partition", str),
    "--env": ("env", str),
    "--name": ("name", str),
    "--broker": ("broker", str),
}
"""Options with one value: the last one counts."""
FLAGS = {"-r": "gen_report", "--gen_report": "gen_report", "-v": "verbose", "--verbose": "verbose"}
PIDS = "--pid"
FORMATS = ("-e", "--export")


def run_plain(words: Sequence[str]) -> int | None:
    """Run the tool for words that are plain, and return its exit code; None where they are not."""
    given = read(words)
    return None if given is None else run(asked(given))


def asked(given: Mapping[str, Any]) -> JobOptions:
    """Return the options of a run from those that were given, by name; what is None was not.

    Raises InvalidInputError and SettingsError.
    """
    found = {name: value for name, value in given.items() if value is not None}
    broker = found.get("broker")
    return checked(
        JobOptions(
            save_dir=absolute(found.get("save_dir", Path())),
            prefix=found.get("prefix"),
            launcher=found.get("launcher", "auto"),
            sampling_freq=found.get("sampling_freq", SAMPLING_FREQ_S),
            check_point=found.get("check_point", CHECK_POINT_S),
            gen_report=found.get("gen_report", False),
            export=tuple(dict.fromkeys(found.get("export", ()))),
            labels={name: found[name] for name in LABELS if name in found},
            verbose=found.get("verbose", False),
            pids=tuple(dict.fromkeys(found.get("pids", ()))),
            broker=None if broker is None else _broker(broker),
            command=found.get("command", ()),
        )
    )


def run(options: JobOptions) -> int:
    """Run the tool once and return its exit code. Raises FedmonError if it could not begin, or if there is no job."""
    _keep_places()
    environ = dict(os.environ)
    identity = identify(environ, hostname=os.uname().nodename, pid=os.getpid())
    if identity.scheduler == "none" and not (options.command or options.pids or environ.get("FEDMON_JOB_ID")):
        raise NotFoundError(
            "there is no job here: no variable of SLURM, PBS or OAR is set. Measure a command with 'fedmon job --"
            " COMMAND', processes with --pid, or set FEDMON_JOB_ID for all processes of a job"
        )

    def monitor(channel: Channel | None) -> int:
        from fedmon.node.job.tool import measure

        return measure(options, identity, environ=environ, channel=channel)

    try:
        if not options.command:
            return monitor(None)
        from fedmon.node.job.wrapper import supervise

        return supervise(options.command, key=identity.key, monitor=monitor)
    except FedmonError as error:
        if error.exit_code == 1:  # it could not begin, which is not to be taken for an end of the job
            raise SettingsError(str(error)) from None
        raise


def absolute(path: Path) -> Path:
    """Return a folder as it is found from anywhere. Raises InvalidInputError."""
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError) as error:  # the present folder was removed, or this user has no home
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidInputError(f"the folder {path} cannot be used: {why}") from None


def _keep_places() -> None:
    """Open what is closed of the standard streams, for us alone, so that no file of ours comes to lie there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _broker(url: str) -> Any:
    from fedmon.common.settings.sources import load_broker

    return load_broker(url, os.environ)


def read(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the options that are given, by name, with the words after ``--`` as ``command``; None if not plain."""
    words, command = list(words), []
    if "--" in words:
        place = words.index("--")
        words, command = words[:place], words[place + 1 :]
        if not command:
            return None
    found: dict[str, Any] = {"command": tuple(command)}
    words.reverse()
    try:
        while words:
            _take(words, found)
    except (ValueError, IndexError):
        return None
    return found


def _take(words: list[str], found: dict[str, Any]) -> None:
    """Take one option from the end of ``words``. Raises ValueError and IndexError where it is not plain."""
    word = words.pop()
    if word in FLAGS:
        found[FLAGS[word]] = True
    elif word in ONE:
        name, kind = ONE[word]
        found[name] = kind(_value(words))
    elif word == PIDS:
        found.setdefault("pids", []).append(int(_value(words)))
    elif word in FORMATS:
        formats = found.setdefault("export", [])
        formats.append(_value(words))
        while words and not words[-1].startswith("-"):
            formats.append(words.pop())
    else:
        raise ValueError(word)


def _value(words: list[str]) -> str:
    if words[-1].startswith("-"):
        raise ValueError(words[-1])
    return words.pop()
