"""The one `fedmon` command; the code of a verb is imported when that verb is used."""

from __future__ import annotations

import gc
import importlib
import io
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import msgspec

from fedmon import __version__
from fedmon.common.errors import FedmonError, InvalidInputError
from fedmon.common.log import configure_cli_logging, escape_control, escape_json

_USAGE_ERROR = 2
_INTERNAL_ERROR = 1
_INTERRUPTED = 130


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """Where a verb is written, and its line in `fedmon --help`.

    The module has a typer ``app``, or ``run_words(words)``, which returns the exit code, where loading typer would take
    too long. The app of several verbs is told which of them was typed; others get only the rest.
    """

    module: str
    summary: str
    shares_app: bool = False


VERBS: Mapping[str, Verb] = {
    "demo": Verb(module="fedmon.demo.cli", summary="Watch a small federation work on this machine."),
    "nodes": Verb(
        module="fedmon.researcher.cli.verbs", summary="List nodes: online, offline, and why.", shares_app=True
    ),
    "ping": Verb(module="fedmon.researcher.cli.verbs", summary="Ask nodes for a sign of life.", shares_app=True),
    "list": Verb(module="fedmon.researcher.cli.verbs", summary="List the datasets that nodes offer.", shares_app=True),
    "search": Verb(module="fedmon.researcher.cli.verbs", summary="Find datasets by their tags.", shares_app=True),
    "approve": Verb(module="fedmon.researcher.cli.verbs", summary="Ask owners to approve a plan.", shares_app=True),
    "run": Verb(module="fedmon.researcher.cli.runs", summary="Run an approved plan on nodes.", shares_app=True),
    "jobs": Verb(module="fedmon.researcher.cli.runs", summary="List your runs of plans, or show one.", shares_app=True),
    "job-logs": Verb(module="fedmon.researcher.cli.runs", summary="Show a plan's output.", shares_app=True),
    "stop": Verb(module="fedmon.researcher.cli.runs", summary="Stop a run of a plan on its nodes.", shares_app=True),
    "experiment": Verb(module="fedmon.experiment.cli", summary="Check, run and watch experiments."),
    "watch": Verb(module="fedmon.researcher.cli.verbs", summary="Watch live metrics of nodes.", shares_app=True),
    "record": Verb(module="fedmon.researcher.cli.verbs", summary="Keep every sample in a recording.", shares_app=True),
    "metrics": Verb(module="fedmon.researcher.cli.metrics", summary="Offer the newest values to Prometheus."),
    "logs": Verb(module="fedmon.researcher.cli.verbs", summary="Follow the logs of nodes.", shares_app=True),
    "export": Verb(module="fedmon.report.cli.export", summary="Write recordings as tables in many formats."),
    "report": Verb(module="fedmon.report.cli.report", summary="Summarise a job or a recording."),
    "node": Verb(module="fedmon.node.owner.cli", summary="Run a node; manage its data, plans and policy."),
    "plan": Verb(module="fedmon.node.runs.cli_check", summary="Try a training plan on this machine."),
    "broker": Verb(module="fedmon.broker.cli", summary="Run a broker and manage its users."),
    "job": Verb(module="fedmon.node.job.cli", summary="Measure a batch job, or a command."),
    "plot": Verb(module="fedmon.report.cli.plot", summary="Draw charts of a recording, a file each."),
    "doctor": Verb(module="fedmon.doctor.cli", summary="Find out why something does not work."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and end the process with its exit code.

    An error of ours becomes one line on stderr, or one JSON document on stdout where the verb was asked for JSON.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = bool(words) and words[0] == "--debug"
    if debug:
        del words[0]
    configure_cli_logging("DEBUG" if debug else "WARNING")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its code, and not an error.
            stream.reconfigure(errors="backslashreplace")
    # Words after "--" belong to a command of the user's.
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    if as_json and "--help" not in words and sys.stdout.isatty():
        sys.stdout = _JsonTerminal(sys.stdout)  # whatever a verb prints there
    try:
        code = _run(words)
        if arguments is None:
            gc.freeze()  # this process is about to end, and need not look through all that is there first
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except FedmonError as error:
        _report(error, as_json=as_json)
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - the shell's user gets a line, the developer asks with --debug
        if debug:
            traceback.print_exc()
        _complain(f"internal error: {type(error).__name__}: {error} (`fedmon --debug ...` shows where)")
        sys.exit(_INTERNAL_ERROR)


class _JsonTerminal(io.TextIOBase):
    """A terminal that shows JSON with hidden characters as escapes."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        """Write JSON, or a whole part of it."""
        self._terminal.write(escape_json(text))
        return len(text)

    def flush(self) -> None:
        """Show the written output."""
        self._terminal.flush()

    def isatty(self) -> bool:
        """Say that it is a terminal."""
        return True

    def fileno(self) -> int:
        """Return the terminal's descriptor."""
        return self._terminal.fileno()


def overview() -> str:
    """Return the text of `fedmon --help`."""
    width = max(map(len, VERBS))
    lines = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return (
        "Usage: fedmon [--debug] VERB [ARGUMENTS]\n\nSee, ask and steer machines you cannot log in to.\n\n"
        f"Verbs:\n{lines}\n\n"
        "`fedmon VERB --help` explains a verb; --version shows the version; --debug logs everything to stderr.\n"
        "Exit codes: 0 done, 1 failed, 2 usage or settings, 3 not found, 4 refused, 5 no connection, 6 no answer.\n"
    )


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        sys.stdout.write(overview())
        return 0 if words else _USAGE_ERROR
    if words[0] == "--version":
        sys.stdout.write(f"fedmon {__version__}\n")
        return 0
    name, *rest = words
    verb = VERBS.get(name)
    if verb is None:
        import difflib

        close = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`fedmon --help` lists the verbs"
        _complain(f"no verb {name!r}; {hint}")
        return _USAGE_ERROR
    module = importlib.import_module(verb.module)
    if hasattr(module, "run_words"):
        return int(module.run_words(rest))
    if verb.shares_app:
        return _call(module.app, words, "fedmon")
    return _call(module.app, rest, f"fedmon {name}")


def _call(app: Any, words: Sequence[str], name: str) -> int:
    """Run an app and return its exit code. Raises InvalidInputError for wrong use, such as an unknown option."""
    import typer

    # Some versions of Typer bundle click, others import it; this finds the one in use.
    wrong_use: type[Exception] = typer.BadParameter.__mro__[2]
    try:
        code = app(args=list(words), prog_name=name, standalone_mode=False)
    except typer.Abort:
        _complain("aborted")
        return 1
    except wrong_use as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(f"{error}\n")
            return _USAGE_ERROR
        raise InvalidInputError(_described(error)) from None
    return code if isinstance(code, int) else 0


def _described(error: Any) -> str:
    context = getattr(error, "ctx", None)
    where = f"; see: {context.command_path} --help" if context is not None else ""
    return f"{' '.join(str(error.format_message()).split()).rstrip('.')}{where}"


def _report(error: FedmonError, *, as_json: bool) -> None:
    if as_json:
        import json

        sys.stdout.write(json.dumps({"error": error.facts()}) + "\n")
    else:
        _complain(str(error))


def _complain(text: str) -> None:
    sys.stderr.write(f"fedmon: {escape_control(text)}\n")
