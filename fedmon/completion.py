"""`fedmon completion`: a file that completes verbs and options, without a start of Python at each Tab."""

from __future__ import annotations

import importlib
import json as json_text
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import typer

from fedmon import __version__
from fedmon.cli import TAKES_WORDS, VERBS, Verb, command_at
from fedmon.common.options import JsonOption

_HEAD = f"# Completion of fedmon {__version__}, made by `fedmon completion SHELL`; no change here lasts."
# After each verb come the verbs in it, then its options, which are offered after a dash only.
_BASH = """
_fedmon() {
    local line=fedmon word offered
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        if [[ $word == -- ]]; then return; fi
        if [[ -n ${_fedmon_words[$line $word]+known} ]]; then line+=" $word"; fi
    done
    offered=${_fedmon_words[$line]}
    if [[ ${COMP_WORDS[COMP_CWORD]} != -* ]]; then offered=${offered%% -*}; fi
    COMPREPLY=($(compgen -W "$offered" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _fedmon fedmon
"""
_ZSH = """
_fedmon() {
    local line=fedmon word offered
    for word in ${words[2,CURRENT-1]}; do
        if [[ $word == -- ]]; then _files; return; fi
        if (( ${+_fedmon_words[$line $word]} )); then line+=" $word"; fi
    done
    offered=${_fedmon_words[$line]}
    if [[ $PREFIX != -* ]]; then offered=${offered%% -*}; fi
    if [[ -n ${offered// /} ]]; then compadd -- ${=offered}; else _files; fi
}
if [[ $funcstack[1] == _fedmon ]]; then _fedmon; else compdef _fedmon fedmon; fi
"""


def completion(
    shell: Annotated[Literal["bash", "zsh"], typer.Argument(help="bash or zsh.")],
    *,
    json: JsonOption = False,
) -> None:
    """Print a completion file of all verbs and options.

    Write it as fedmon into ~/.local/share/bash-completion/completions, or for zsh as _fedmon into a folder of $fpath.
    """
    rows = {line: " ".join(["", *words]) for line, words in offered().items()}
    start, row, end = ("", "['{}']='{}'", _BASH) if shell == "bash" else ("#compdef fedmon\n", "'{}' '{}'", _ZSH)
    table = "\n".join(f"    {row.format(line, words)}" for line, words in rows.items())
    script = f"{start}{_HEAD}\ntypeset -gA _fedmon_words=(\n{table}\n)\n{end}"
    sys.stdout.write(f"{json_text.dumps({'shell': shell, 'script': script})}\n" if json else script)


def commands() -> dict[str, Any]:
    """Map each command line, such as ``fedmon node plan show``, to its parser: a click command, or one of argparse."""
    return dict(_walk("fedmon", VERBS))


def _walk(line: str, verbs: Mapping[str, Verb]) -> Iterator[tuple[str, Any]]:
    for name, verb in verbs.items():
        if verb.place.endswith(TAKES_WORDS):
            parsers = importlib.import_module(verb.place.partition(":")[0]).parsers()
            yield from ((f"{line} {words}", parser) for words, parser in parsers.items())
        else:
            yield from _within(f"{line} {name}", command_at(verb.place) if verb.place else None)
        yield from _walk(f"{line} {name}", verb.verbs)


def _within(line: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield line, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _within(f"{line} {name}", inner)


def offered() -> dict[str, list[str]]:
    """Map each command line, ``fedmon`` itself too, to the words that can follow: verbs, then options."""
    found = {"fedmon": ["--debug", "--version", "-h", "--help"]}
    for line, command in commands().items():
        before, _, name = line.rpartition(" ")
        found[before].insert(0, name)  # shells sort them
        found[line] = [*dict.fromkeys([*_options(command), "-h", "--help"])]
    return found


def _options(command: Any) -> Iterator[str]:
    # Parameters of click have a list of options, and actions of argparse one of another name.
    for one in getattr(command, "params", getattr(command, "_actions", ())):
        hidden = getattr(one, "hidden", False) or getattr(one, "help", "") == "==SUPPRESS=="
        words = [*getattr(one, "opts", getattr(one, "option_strings", ())), *getattr(one, "secondary_opts", ())]
        yield from (word for word in words if word[:1] == "-" and not hidden)
