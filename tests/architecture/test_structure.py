"""Names, sizes, depth and imports of modules, with lists of exceptions that only shrink."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.architecture.modules import ROOT, Module, above, bases, chains, components, graph, members, modules, source

EXCEPTIONS = sorted((Path(__file__).parent / "exceptions").glob("*.txt"))
"""Each line is a rule and what breaks it: ``later.txt`` of packages to be rebuilt, ``now.txt`` of all others."""
MAX_FOLDER_MODULES = 15
MAX_FUNCTION_LINES = 60
MAX_TOGETHER = 600
"""Lines of a module and its one user, above which they stay two."""
MIN_CATALOGUE = 3
"""A folder of so many modules, all imported by the same one, is a catalogue."""
MAX_CHAIN = 15
LONGEST_CHAIN = 17
MAX_CLASSES_ABOVE = 2
LOADER = "import_module("
NOUNS = {"asking", "messaging", "ping", "recording", "setting", "string", "training"}
"""Words in -ing that the field uses as nouns."""
NO_NOUN = re.compile(
    r"\w+ing|about|ahead|confined|explicit|found|from|given|gone|held|kept|known|latest|linked|load|made|meant|"
    r"measured|noted|own|owned|pickled|plain|reported|said|sealed|seen|seldom|shown|stopped|told|unscheduled|"
    r"vanished|wanted|watched|whole|"
    r"utils?|helpers?|misc|tools|manager|data|info"
)
DEMO_DATA = ROOT / "fedmon/demo/data"
DOORS = re.compile(r"/cli(_\w+)?\.py$|/cli/|/requests/handlers/|/collectors/|/demo/data/|/__main__\.py$")
"""Verbs of the shell, handlers of messages, collectors, plans of the demo."""


def names() -> Iterator[str]:
    """Yield modules and folders with a word in their name that is no noun."""
    places = {parent for module in modules().values() for parent in (module.path, *module.path.parents)}
    for place in places:
        words = place.stem.split("_")
        if (
            place.is_relative_to(ROOT / "fedmon")
            and place != DEMO_DATA
            and any(NO_NOUN.fullmatch(word) for word in set(words) - NOUNS)
        ):
            yield place.relative_to(ROOT).as_posix()


def folders() -> Iterator[str]:
    """Yield folders of too many modules."""
    count = Counter(module.path.parent for module in modules().values() if not module.is_package)
    yield from (path.relative_to(ROOT).as_posix() for path, found in count.items() if found > MAX_FOLDER_MODULES)


def importers() -> Iterator[str]:
    """Yield modules that belong into the one that uses them: no door, fewer than two importers, and room in there.

    Who imports a name that a package re-exports is an importer of the module that defines it.
    """
    users: dict[str, set[str]] = {name: set() for name in modules()}
    for module in modules().values():
        for each in module.imports:
            for used in {each.module, source(each.module, each.name)[0]} - {module.name}:
                users[used].add(module.name)
    siblings: dict[str, set[str]] = {}
    for name, module in modules().items():
        if not module.is_package:
            siblings.setdefault(name.rpartition(".")[0], set()).add(name)
    for name, module in modules().items():
        if len(users[name]) > 1 or module.is_package or is_door(module):
            continue
        beside = siblings[name.rpartition(".")[0]]
        is_entry = len(beside) >= MIN_CATALOGUE and all(users[each] >= users[name] for each in beside)
        together = sum(modules()[each].text.count("\n") for each in (name, *users[name]))
        if not users[name] or (together <= MAX_TOGETHER and not is_entry):
            yield module.file


def is_door(module: Module) -> bool:
    """Tell whether a module is a program, or is imported by name, or holds verbs, a handler or collectors."""
    if DOORS.search(module.file) or 'if __name__ == "__main__"' in module.text or named().fullmatch(module.name):
        return True
    packages = (each for name, each in modules().items() if each.is_package and module.name.startswith(f"{name}."))
    tables = [(each.text, module.name.removeprefix(f"{each.name}.")) for each in packages if LOADER in each.text]
    return any(f'"{short}{end}' in text for text, short in tables for end in '":')


@functools.cache
def named() -> re.Pattern[str]:
    """Return what matches the modules whose whole names are written in a text, one word perhaps to be filled in."""
    texts = {text for module in modules().values() for text in re.findall(r'"(fedmon[\w.{}]+\w)[":]', module.text)}
    return re.compile("|".join(re.sub(r"\{\w+\}", r"\\w+", text) for text in texts))


def depth() -> Iterator[str]:
    """Yield classes with more than two of ours above them; errors, structs, enums and protocols do not count."""
    for module in modules().values():
        yield from (f"{module.file}:{name}" for name in module.classes if above(module.name, name) > MAX_CLASSES_ABOVE)


def protocols() -> Iterator[str]:
    """Yield protocols that exactly one class of ours fits; what users or libraries implement fits none, or more."""
    classes = [(module.name, name) for module in modules().values() for name in module.classes]
    offers = {each: members(*each) for each in classes if "Protocol" not in bases(*each)[1]}
    for module, name in classes:
        wants = members(module, name, inherited=False)
        if "Protocol" in bases(module, name)[1] and sum(wants <= offer for offer in offers.values()) == 1:
            yield f"{modules()[module].file}:{name}"


def functions() -> Iterator[str]:
    """Yield functions that are too long."""
    for module in modules().values():
        yield from (f"{module.file}:{name}" for name, lines in module.functions if lines > MAX_FUNCTION_LINES)


def twice() -> Iterator[str]:
    """Yield names of public classes that occur more than once outside of compat."""
    ours = (module for name, module in modules().items() if not name.startswith("fedmon.compat."))
    count = Counter(name for module in ours for name in module.classes if not name.startswith("_"))
    yield from (name for name, found in count.items() if found > 1)


def circles() -> Iterator[str]:
    """Yield modules that import each other, imports for type checkers and those inside functions included."""
    yield from (" ".join(each) for each in components(graph()) if len(each) > 1)


def chain() -> Iterator[str]:
    """Yield folders of modules that begin too long a chain of imports."""
    for name, length in chains(graph(at_start=True)).items():
        if length > MAX_CHAIN:
            yield modules()[name].path.parent.relative_to(ROOT).as_posix()


RULES: tuple[Callable[[], Iterator[str]], ...] = (
    names, folders, importers, depth, protocols, functions, twice, circles, chain,
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_holds_but_for_what_is_listed(rule: Callable[[], Iterator[str]]) -> None:
    lines = (line.partition(" ") for path in EXCEPTIONS for line in path.read_text().splitlines())
    found, listed = set(rule()), {what for word, _, what in lines if word == rule.__name__}

    assert found - listed == set(), rule.__doc__
    assert listed - found == set(), "keeps the rule by now: take it off the list"


def test_the_longest_chain_of_imports_gets_no_longer() -> None:
    assert max(chains(graph(at_start=True)).values()) <= LONGEST_CHAIN
