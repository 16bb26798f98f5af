"""Every verb of `fedmon` keeps its arguments, options, defaults and exit codes, as its help tells them."""

from __future__ import annotations

import re

import pytest

from tests.contract.tables import rewrite, table
from tests.support.environment import plain_environment
from tests.support.shell_here import fedmon_here

_OPTION = re.compile(r"^  (-\S+(?:(?:, | / )-\S+)*)(?: (<[^>]+>|[A-Z][A-Z=|]*(?: \.\.\.)?))?(?=  |$)")
_VERBS = table("verbs")


def _help(words: list[str]) -> str:
    done = fedmon_here(*words, "--help", environ=plain_environment(COLUMNS="100", TERMINAL_WIDTH="100"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def _section(text: str, title: str) -> list[str]:
    _, _, rest = text.partition(f"\n{title}:\n")
    return rest.split("\n\n", 1)[0].splitlines()


def _names(text: str, title: str) -> list[str]:
    return [found[1] for row in _section(text, title) if (found := re.match(r"^  (\w\S*)", row))]


def _options(text: str) -> list[str]:
    """Return the options as ``-t, --timeout= 5.0`` or ``--sort=<worst|name> worst``; a flag has no ``=``."""
    found = []
    for block in re.split(r"\n(?=  -)", "\n" + "\n".join(_section(text, "Options")))[1:]:
        first = _OPTION.match(block.split("\n", 1)[0])
        assert first is not None, block
        names, value = first[1], first[2] or ""
        choices = value.startswith("<") and "|" in value
        default = re.search(r"\[default: ([^;\]]+)", " ".join(block.split()))
        kind = f"={value if choices else ''}" if value else ""
        found.append(f"{names}{kind}" + (f" {default[1]}" if default else ""))
    return [option for option in found if option != "--help"]


def _arguments(text: str) -> list[str]:
    words = text.split("[OPTIONS]", 1)[1].split("\n", 1)[0].split() if "[OPTIONS]" in text else []
    many = {True: "...", False: ""}
    return [("optional" if "[" in word else "required") + many[word.endswith("...")] for word in words]


def _told(text: str) -> list[str]:
    """Return what a help promises: the exit codes, each argument, each option."""
    codes = " ".join(text.split()).partition("Exit codes: ")[2]
    exits = sorted(set(re.findall(r"(?:^|, |; |else |ends with )(\d) ", codes)))
    arguments = [] if "[-- COMMAND" in text else _arguments(text)
    return [" ".join(["exits", *exits]), *arguments, *_options(text)]


def _walk(words: list[str]) -> dict[str, list[str]]:
    text = _help(words)
    children = _names(text, "Commands" if words else "Verbs")
    found = {" ".join(words): _told(text)} if words and (not children or "Exit codes" in text) else {}
    for child in children:
        found |= _walk([*words, child])
    return found


@pytest.fixture(scope="module")
def verbs() -> dict[str, list[str]]:
    """What the help of each verb tells."""
    found = _walk([])
    rewrite("verbs", found)
    return found


def test_no_verb_is_gone(verbs: dict[str, list[str]]) -> None:
    assert [verb for verb in _VERBS if verb not in verbs] == []


@pytest.mark.parametrize("verb", _VERBS)
def test_a_verb_keeps_its_arguments_options_and_exit_codes(verb: str, verbs: dict[str, list[str]]) -> None:
    (exits, *frozen), (exits_now, *told) = _VERBS[verb], verbs[verb]
    arguments, arguments_now = ([word for word in words if word[0] != "-"] for words in (frozen, told))

    assert set(exits.split()) <= set(exits_now.split())
    assert arguments == arguments_now[: len(arguments)]
    assert [word for word in arguments_now[len(arguments) :] if "required" in word] == []
    now = _by_word(told)
    for word, (takes_value, choices, default) in _by_word(frozen).items():
        assert word in now
        assert (takes_value, default) == (now[word][0], now[word][2]), word
        assert choices <= now[word][1], word


def _by_word(options: list[str]) -> dict[str, tuple[bool, set[str], str]]:
    """Map each spelling of an option to whether it takes a value, of which choices, and to its default."""
    found = {}
    for option in (option for option in options if option[0] == "-"):
        names, sign, rest = option.partition("=")
        choices, _, default = rest.partition(" ")
        kind = (bool(sign), set(choices.strip("<>").split("|")), default)
        found.update(dict.fromkeys(re.split(r", | / ", names), kind))
    return found


def test_perfmons_name_of_the_interval_is_hidden_and_taken() -> None:
    done = fedmon_here("job", "--sampling_freq", "0", "--", "true", environ=plain_environment())

    assert done.returncode == 2
    assert "--interval is a period in seconds, from 0.2" in done.stderr
