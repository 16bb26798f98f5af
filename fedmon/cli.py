"""The one `fedmon` command: its tree of verbs; the code of a verb is imported when that verb is used."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedmon import __version__
from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.log import configure_cli_logging, escape_control, escape_json

_USAGE_ERROR = 2
_INTERRUPTED = 130
_HELP = ("-h", "--help")
_WIDEST_NAMES = 20
_TAKES_NEXT = re.compile(r"--(?!json$|help$)[^=]+|-[^h]")
_TYPES = {"str": "text", "int": "integer", "float": "number"}
TAKES_WORDS = "run_words"
"""Name of a function that reads the words of its verb without typer, and returns the exit code."""


class Verb(NamedTuple):
    """A verb: its line in `--help`, its code, and the verbs in it if it is a group.

    ``place`` is ``module:name`` of a function, or of a typer app. A group without one shows its help.
    """

    summary: str
    place: str = ""
    verbs: Mapping[str, Verb] = {}


TREE: Mapping[str, Mapping[str, Verb]] = {
    "See": {
        "nodes": Verb(
            "List nodes: online, offline, and why.",
            "fedmon.researcher.cli.verbs:nodes",
            {"forget": Verb("Forget a node that is gone for good.", "fedmon.researcher.cli.verbs:forget")},
        ),
        "ping": Verb("Ask nodes for a sign of life.", "fedmon.researcher.cli.verbs:ping"),
        "watch": Verb("Watch live metrics of nodes.", "fedmon.researcher.cli.verbs:watch"),
        "logs": Verb("Follow the logs of nodes.", "fedmon.researcher.cli.verbs:logs"),
        "datasets": Verb("List the datasets of nodes, or find some by tag.", "fedmon.researcher.cli.verbs:datasets"),
        "whoami": Verb("Show your researcher id, and where it is kept.", "fedmon.researcher.cli.verbs:whoami"),
        "doctor": Verb("Find out why something does not work.", "fedmon.doctor.cli:doctor"),
    },
    "Run": {
        "plan": Verb(
            "Try a plan, and ask owners to approve it.",
            verbs={
                "check": Verb("Try a plan on this machine.", "fedmon.node.runs.cli_check:check"),
                "request": Verb("Ask owners to approve a plan.", "fedmon.researcher.cli.verbs:request"),
                "status": Verb("Show which nodes approved a plan.", "fedmon.researcher.cli.verbs:status"),
            },
        ),
        "run": Verb("Run an approved plan on nodes.", "fedmon.researcher.cli.runs:run"),
        "runs": Verb(
            "List your runs; show, follow or stop one.",
            "fedmon.researcher.cli.runs:list_",
            verbs={
                "list": Verb("List your runs, newest first.", "fedmon.researcher.cli.runs:list_"),
                "show": Verb("Show a run and its results.", "fedmon.researcher.cli.runs:show"),
                "logs": Verb("Show the output of a run.", "fedmon.researcher.cli.runs:logs"),
                "stop": Verb("Stop a run on its nodes.", "fedmon.researcher.cli.runs:stop"),
            },
        ),
        "experiment": Verb(
            "Check, run, watch and report on experiments.",
            verbs={
                "check": Verb("Plan an experiment without running it.", "fedmon.experiment.cli.documents:check"),
                "run": Verb("Run an experiment.", "fedmon.experiment.cli.runs:run"),
                "show": Verb("Show the state of a run.", "fedmon.experiment.cli.runs:show"),
                "watch": Verb("Follow a run of another process.", "fedmon.experiment.cli.runs:watch"),
                "reconnect": Verb("Resume a run whose process died.", "fedmon.experiment.cli.runs:reconnect"),
                "graph": Verb("Draw an experiment.", "fedmon.experiment.cli.documents:graph"),
                "report": Verb("Report on a run.", "fedmon.experiment.cli.documents:report"),
            },
        ),
    },
    "Measure": {
        "job": Verb("Measure a batch job, or a command.", f"fedmon.node.job.cli:{TAKES_WORDS}"),
        "record": Verb("Keep every sample of nodes in a recording.", "fedmon.researcher.cli.verbs:record"),
        "report": Verb("Summarise a job or a recording.", "fedmon.report.cli.report:report"),
        "plot": Verb("Draw charts of a recording, a file each.", "fedmon.report.cli.plot:plot"),
        "export": Verb("Write recordings as tables in many formats.", "fedmon.report.cli.export:export"),
        "metrics": Verb(
            "Offer the newest values to Prometheus.",
            verbs={"serve": Verb("Serve the newest values of nodes.", "fedmon.researcher.cli.verbs:serve")},
        ),
    },
    "Own a node": {
        "node": Verb("Run a node; manage its data, plans and policy.", "fedmon.node.owner.cli:app"),
    },
    "Operate": {
        "broker": Verb("Run a broker, and manage its users.", "fedmon.broker.cli:app"),
        "demo": Verb("Watch a small federation work on this machine.", "fedmon.demo.cli:demo"),
        "completion": Verb("Print a completion file for bash or zsh.", "fedmon.completion:completion"),
    },
}
"""The verbs by heading."""
VERBS: Mapping[str, Verb] = {name: verb for verbs in TREE.values() for name, verb in verbs.items()}

OLD_VERBS: Mapping[str, str] = {
    "list": "datasets", "search": "datasets", "approve": "plan request", "jobs": "runs list", "job-logs": "runs logs",
    "stop": "runs stop",
}  # fmt: skip
"""Verbs that have another name now; `approve --status` is `plan status`, and `jobs JOB` is `runs show`."""
OLD_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "watch": {"--timeout": "--for", "-t": "--for"},
    "logs": {"--timeout": "--for", "-t": "--for"},
    "experiment watch": {"--timeout": "--for", "-t": "--for"},
    "run": {"--args": "--arg", "--tag": "--tags"},
    "plan check": {"--args": "--arg"},
    "": {"--nodes": "--node"},
}
"""Options that have another name now, by verb; "" stands for every verb."""

EXIT_CODES: Mapping[int, str] = {
    0: "done; for checks: nothing failed",
    1: "failed; also: aborted, a check failed, plans differ, the audit was changed",
    2: "wrong use or settings, or an impossible experiment",
    3: "not found, or nothing to show",
    4: "refused, or in conflict with something that exists or runs",
    5: "no connection to the broker",
    6: "no answer, or not over, in time; an offline node counts only if it was named",
    _INTERRUPTED: "interrupted by Ctrl-C",
    143: "ended by SIGTERM",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and end the process with its exit code.

    An error of ours becomes one line on stderr, or one JSON document on stdout where the verb was asked for JSON.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the start
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = words[:1] == ["--debug"]
    del words[:debug]
    configure_cli_logging("DEBUG" if debug else "WARNING")
    own = _own(words)
    as_json = "--json" in own
    for stream, encoding in ((sys.stdout, "utf-8" if as_json else None), (sys.stderr, None)):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its code, and not an error; JSON is always UTF-8 (RFC 8259).
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
    if as_json and not set(_HELP) & set(own) and sys.stdout.isatty():
        sys.stdout = _JsonTerminal(sys.stdout.buffer, sys.stdout.encoding, "backslashreplace", line_buffering=True)
    try:
        try:
            code = _run(words)
        except Exception as error:  # noqa: BLE001 - the shell's user gets a line, the developer asks with --debug
            code = _report(error, as_json=as_json, is_debug=debug)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except OSError as error:  # a full disk, or a reader that has enough, as `head` has; Python must not try again
        told, nowhere = StorageError(f"cannot write the output: {error.strerror}"), os.open(os.devnull, os.O_WRONLY)
        code = 0 if isinstance(error, BrokenPipeError) else _report(told, as_json=False, is_debug=debug)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
    if arguments is None:
        gc.freeze()  # this process is about to end, and need not look through all that is there first
    sys.exit(code)


class _JsonTerminal(io.TextIOWrapper):
    """A terminal that shows JSON with hidden characters as escapes."""

    def write(self, text: str) -> int:
        """Write JSON, or a whole part of it."""
        return super().write(escape_json(text))


# --- help -------------------------------------------------------------------------------------------------------------


def overview() -> str:
    """Return the text of `fedmon --help`."""
    shown = {
        heading: {_with_verbs(name, verb): verb for name, verb in verbs.items()} for heading, verbs in TREE.items()
    }
    width = max(len(name) for verbs in shown.values() for name in verbs)
    parts = "\n\n".join(f"{heading}:\n{_listed(verbs, width)}" for heading, verbs in shown.items())
    return (
        "Usage: fedmon [--debug] VERB [ARGUMENTS]\n\nSee, ask and steer machines you cannot log in to.\n\n"
        f"{parts}\n\n"
        "`fedmon help VERB` explains a verb, `fedmon help exit-codes` the exit codes.\n"
        "--version shows the version; --debug logs everything to stderr.\n"
    )


def exit_codes() -> str:
    """Return the text of `fedmon help exit-codes`."""
    rows = "\n".join(f"  {code:<3}  {meaning}" for code, meaning in EXIT_CODES.items())
    return f"Exit codes of every verb:\n{rows}\n\n`fedmon job -- COMMAND` ends with the exit code of COMMAND.\n"


def _with_verbs(name: str, verb: Verb) -> str:
    verbs = "|".join(verb.verbs)
    is_plain = len(verb.verbs) <= bool(verb.place)  # `nodes` is more than `nodes forget`
    return name if is_plain else f"{name} {verbs if len(verbs) <= _WIDEST_NAMES else '...'}"


def _listed(verbs: Mapping[str, Verb], width: int) -> str:
    return "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in verbs.items())


def _group_help(line: str, verb: Verb) -> str:
    """Return the help of a group, in the form of typer's; with a place, that of the verb there and the verbs in it."""
    listed = f"\n\nCommands:\n{_listed(verb.verbs, max(map(len, verb.verbs)))}\n"
    if verb.place:
        command = command_at(verb.place)
        context = command.make_context(line, [], resilient_parsing=True, help_option_names=list(_HELP))
        return str(command.get_help(context)).replace("[OPTIONS]", "[OPTIONS] [COMMAND] [ARGS]...", 1) + listed
    usage = f"Usage: {line} [OPTIONS] COMMAND [ARGS]...\n\n  {verb.summary}"
    return f"{usage}\n\nOptions:\n  -h, --help  Show this message and exit.{listed}"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that takes the fewest edits, of these one of the same length; empty if none is close."""
    best = min(known, key=lambda name: (_edits(word, name), abs(len(word) - len(name))), default="")
    return best if _edits(word, best) <= max(1, len(word) // 3) else ""


def _edits(one: str, other: str) -> int:
    """Count the letters to insert, remove or replace (Levenshtein's distance)."""
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        above, row = row, [at]
        for place, against in enumerate(other):
            row.append(min(row[-1] + 1, above[place + 1] + 1, above[place] + (letter != against)))
    return row[-1]


# --- verbs ------------------------------------------------------------------------------------------------------------


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        if words[1:] == ["exit-codes"]:
            sys.stdout.write(exit_codes())
            return 0
        words = [*words[1:], "--help"]
    if not words or words[0] in _HELP:
        sys.stdout.write(overview())
        return 0 if words else _USAGE_ERROR
    if words[0] == "--version":
        sys.stdout.write(f"fedmon {__version__}\n")
        return 0
    line, verb, rest = "fedmon", Verb("", verbs=VERBS), renewed(words)
    while at := [at for at, word in enumerate(_own(rest)) if word in verb.verbs and (at == 0 or verb.place)]:
        # Options of a group that is a verb itself may stand before the verb in it.
        name = rest.pop(at[0])
        line, verb = f"{line} {name}", verb.verbs[name]
    if verb.verbs:
        if rest and rest[0][:1] != "-":
            close = closest(rest[0], verb.verbs)
            hint = f"did you mean {close!r}?" if close else f"`{line} --help` lists the verbs"
            raise InvalidInputError(f"no verb {' '.join([*line.split()[1:], rest[0]])!r}; {hint}")
        if set(rest[:1]) & set(_HELP) or not (rest or verb.place):
            sys.stdout.write(_group_help(line, verb))
            return 0 if rest else _USAGE_ERROR
        if not verb.place:
            raise InvalidInputError(f"no such option: {rest[0]}; see: {line} --help")
    found = command_at(verb.place)
    return int(found(rest)) if verb.place.endswith(f":{TAKES_WORDS}") else _call(found, rest, line)


def renewed(words: Sequence[str]) -> list[str]:
    """Return a command line with the present names of old verbs and options; each is told on stderr."""
    name, *rest = words
    now = OLD_VERBS.get(name, name)
    if name == "approve" and "--status" in rest:
        rest.remove("--status")
        now = "plan status"
    elif name == "jobs" and _has_argument(rest):
        now = "runs show"
    if now != name:
        _complain(f"`{name}` is now `{now}`")
    own = _own(line := [*now.split(), *rest])
    places = ("", line[0], " ".join(line[:2]))
    names = {old: new for place in places for old, new in OLD_OPTIONS.get(place, {}).items()}
    for at, word in enumerate(own):
        option, sign, value = word.partition("=") if word[:2] == "--" else (word[:2], "=" * (len(word) > 2), word[2:])
        if option in names:
            _complain(f"`{option}` is now `{names[option]}`")
            own[at] = f"{names[option]}{sign}{value}"
    return [*own, *line[len(own) :]]


def _own(words: Sequence[str]) -> list[str]:
    """Return the words before "--"; those after it belong to a command of the user's."""
    return list(words[: words.index("--")] if "--" in words else words)


def _has_argument(words: Sequence[str]) -> bool:
    """Tell whether the words of `jobs` name a run: all its options but --json take a value."""
    pairs = zip(["", *words], words, strict=False)
    return any(word[:1] != "-" and not _TAKES_NEXT.fullmatch(before) for before, word in pairs)


def command_at(place: str) -> Any:
    """Import a verb: return the click command of its function or app, or the function if it takes words."""
    module, _, name = place.partition(":")
    found = getattr(importlib.import_module(module), name)
    if name == TAKES_WORDS:
        return found
    import typer
    from typer.main import get_command

    app = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False, rich_markup_mode=None)
    if app is not found:
        app.command()(found)
    command = get_command(app)
    _adapt(command)
    return command


def _adapt(command: Any) -> None:
    """Name types in help and errors as users do, arguments too, and take ``~`` for a home in every path."""
    from fedmon.common.files import at_home

    for param in command.params:
        kind = param.type.name.removesuffix(" range")
        if kind == "path":  # shells leave it in --option=~/file
            param.type.convert = lambda value, *rest, own=param.type.convert: own(at_home(value), *rest)
        param.type.name = _TYPES.get(kind, kind)
        if param.param_type_name == "argument" and param.nargs == 1 and param.metavar is None:
            param.metavar = param.name.upper()
    for inner in getattr(command, "commands", {}).values():
        _adapt(inner)


def _call(command: Any, words: Sequence[str], name: str) -> int:
    """Run a command and return its exit code. Raises InvalidInputError for wrong use, such as an unknown option."""
    import typer

    # Some versions of Typer bundle click, others import it; this finds the one in use.
    wrong_use: Any = typer.BadParameter.__mro__[2]
    try:
        with command.make_context(name, list(words), help_option_names=list(_HELP)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        raise FedmonError("aborted") from None
    except wrong_use as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(f"{error}\n")
            return _USAGE_ERROR
        where = f"; see: {error.ctx.command_path} --help" if getattr(error, "ctx", None) else ""
        raise InvalidInputError(f"{' '.join(str(error.format_message()).split()).rstrip('.')}{where}") from None


def _report(error: Exception, *, as_json: bool, is_debug: bool) -> int:
    """Print an error and return its exit code. Raises those of writing the output, which takes no document then."""
    if is_debug and not isinstance(error, FedmonError):
        traceback.print_exception(error)
    if isinstance(error, UnicodeEncodeError):  # a word that may name a file, but can be in no message
        error = InvalidInputError(f"{ascii(error.object)[:80]} is not UTF-8 text")
    elif isinstance(error, OSError) and error.errno:  # as of a folder of another user, or of no room for files
        if not error.filename and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
            raise error
        error = StorageError(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    if not isinstance(error, FedmonError):
        _complain(f"internal error: {type(error).__name__}: {error} (`fedmon --debug ...` shows where)")
        return 1
    if as_json:
        import json

        sys.stdout.write(json.dumps({"error": error.facts()}) + "\n")
    else:
        _complain(str(error))
    return error.exit_code


def _complain(text: str) -> None:
    sys.stderr.write(f"fedmon: {escape_control(text)}\n")
