"""Every verb of `fedmon` keeps its arguments, options, defaults and exit codes, as its help tells them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedmon.cli import OLD_OPTIONS, OLD_VERBS, VERBS, exit_codes
from tests.contract.tables import rewrite, table
from tests.support.environment import plain_environment
from tests.support.shell_here import fedmon_here

_OPTION = re.compile(r"^  (-\S+(?:(?:, | / )-\S+)*)(?: (<[^>]+>|[A-Z][A-Z=|]*(?: \.\.\.)?))?(?=  |$)")
_VERBS = table("verbs")
_SPLIT = {"approve": ["plan request", "plan status"], "jobs": ["runs list", "runs show"]}
"""Verbs that are two now; the words decide which: `approve --status` and `jobs JOB`."""


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
    return [option for option in found if option != "-h, --help"]


def _arguments(text: str) -> list[str]:
    words = text.split("[OPTIONS]", 1)[1].split("\n", 1)[0].split() if "[OPTIONS]" in text else []
    many = {True: "...", False: ""}
    return [("optional" if "[" in word else "required") + many[word.endswith("...")] for word in words]


def _told(text: str) -> list[str]:
    """Return what a help promises: each argument, each option."""
    return [*([] if "[-- COMMAND" in text else _arguments(text)), *_options(text)]


def _walk(words: list[str]) -> dict[str, list[str]]:
    text = _help(words)
    found = {" ".join(words): _told(text)}
    for child in _names(text, "Commands"):
        found |= _walk([*words, child])
    return found


@pytest.fixture(scope="module")
def verbs() -> dict[str, list[str]]:
    """What the help of each verb tells."""
    found = {verb: told for name in VERBS for verb, told in _walk([name]).items()}
    rewrite("verbs", {verb: ["exits 0 1 2 3 4 5 6", *told] for verb, told in found.items()})
    return found


def _now(verb: str) -> list[str]:
    return _SPLIT.get(verb) or [OLD_VERBS.get(verb, verb)]


def test_no_verb_is_gone(verbs: dict[str, list[str]]) -> None:
    assert [verb for verb in _VERBS if not set(_now(verb)) <= set(verbs)] == []
    assert [verb for verb in OLD_VERBS if fedmon_here(verb, "--help").returncode != 0] == []


@pytest.mark.parametrize("verb", _VERBS)
def test_a_verb_keeps_its_arguments_options_and_exit_codes(verb: str, verbs: dict[str, list[str]]) -> None:
    exits, *frozen = _VERBS[verb]
    names = {old: new for now in ("", *_now(verb)) for old, new in OLD_OPTIONS.get(now, {}).items()}
    told = [word for now in _now(verb) for word in verbs[now]]
    arguments, arguments_now = ([word for word in words if word[0] != "-"] for words in (frozen, told))

    assert set(exits.split()[1:]) <= set(re.findall(r"^  (\d+)  ", exit_codes(), re.MULTILINE))
    # An argument that may be left out now is no break.
    pairs = list(zip(arguments, arguments_now, strict=False))
    assert verb in _SPLIT or len(pairs) == len(arguments)
    assert (
        verb in _SPLIT
        or [was for was, is_now in pairs if is_now not in (was, was.replace("required", "optional"))] == []
    )
    assert verb in _SPLIT or [word for word in arguments_now[len(arguments) :] if "required" in word] == []
    now = _by_word(told)
    for word, (takes_value, choices, default) in _by_word(frozen).items():
        if (verb, word) == ("approve", "--status"):
            continue
        found = now[names.get(word, word)]
        assert (takes_value, default) == (found[0], found[2]), word
        assert choices <= found[1], word


def test_old_words_work_and_name_the_new_ones(tmp_path: Path) -> None:
    plan, environ = str(tmp_path / "no.py"), plain_environment(FEDMON_RESEARCHER_FOLDER=str(tmp_path))
    lines = {
        "list --nodes=, -t5": ["`list` is now `datasets`", "`--nodes` is now `--node`"],
        "search x --node ,": ["`search` is now `datasets`"],
        f"approve --status {plan} -n ,": ["`approve` is now `plan status`"],
        f"approve {plan} -n ,": ["`approve` is now `plan request`"],
        "jobs -n ,": ["`jobs` is now `runs list`"],
        "jobs -n , --wait 3 0190": ["`jobs` is now `runs show`"],
        "jobs --json 0190 --node=,": ["`jobs` is now `runs show`"],
        "job-logs 0190 -n ,": ["`job-logs` is now `runs logs`"],
        "stop 0190 -n ,": ["`stop` is now `runs stop`"],
        "watch -t5 -n ,": ["`-t` is now `--for`"],
        "logs --timeout=5 -n ,": ["`--timeout` is now `--for`"],
        f"run {plan} --args {{}} --tag x --nodes ,": [
            "`--args` is now `--arg`", "`--tag` is now `--tags`", "`--nodes` is now `--node`",
        ],
    }  # fmt: skip
    for line, named in lines.items():
        done = fedmon_here(*line.split(), environ=environ)

        assert (done.returncode, "names none" in done.stdout + done.stderr) == (2, True), line
        assert [row.removeprefix("fedmon: ") for row in done.stderr.splitlines()][: len(named)] == named


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
