"""What no line of fedmon does: run text as code, unpickle, start a shell, sleep."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.modules import parsed

PACKAGE = Path(__file__).parents[2] / "fedmon"
BANNED_CALLS = {
    "eval": "runs text as code", "exec": "runs text as code", "__import__": "use importlib",
    "input": "use typer.prompt", "compile": "runs text as code",
    "time.sleep": "wait for a condition with a deadline", "sleep": "wait for a condition with a deadline",
    "os.system": "starts a shell", "os.popen": "starts a shell", "subprocess.getoutput": "starts a shell",
    "subprocess.getstatusoutput": "starts a shell", "yaml.load": "makes any object",
    "yaml.unsafe_load": "makes any object",
    "tempfile.mktemp": "can be raced",
}  # fmt: skip
BANNED_MODULES = {
    "pickle": "runs code", "cPickle": "runs code", "dill": "runs code", "cloudpickle": "runs code",
    "shelve": "unpickles", "marshal": "crashes on bad input", "xml": "expands entities", "telnetlib": "clear text",
}  # fmt: skip


def dotted(node: ast.expr) -> str:
    """Return a name with what it is an attribute of, as it is written; "" for what is no such name."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def violations(tree: ast.AST) -> list[str]:
    """Return what a syntax tree does that is banned, with its line."""
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in BANNED_CALLS:
                found.append(f"{line}: {name}() - {BANNED_CALLS[name]}")
            found += [
                f"{line}: shell=... - starts a shell"
                for keyword in node.keywords
                if keyword.arg == "shell"
                and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            ]
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.partition(".")[0] in BANNED_MODULES or name in BANNED_CALLS:
                found.append(f"{line}: import {name}")
    return found


BANNED_LINES = """
eval(text)
exec(text)
compile(text, "", "exec")
import pickle
from pickle import loads
from xml.dom import minidom
time.sleep(1)
from time import sleep
os.system(text)
subprocess.run(text, shell=True)
subprocess.Popen(text, shell=flag)
yaml.load(text)
"""


def test_the_ban_sees_what_it_bans() -> None:
    seen = {int(line.partition(":")[0]) for line in violations(ast.parse(BANNED_LINES))}

    assert seen == set(range(2, 2 + BANNED_LINES.count("\n") - 1))


def test_no_file_does_what_is_banned() -> None:
    found = {str(path.relative_to(PACKAGE)): violations(parsed(path)) for path in PACKAGE.rglob("*.py")}

    assert len(found) > 50
    # In the process of an approved plan, in its sandbox, and nowhere else.
    running = sorted(line.partition(": ")[2] for line in found.pop("plan/process.py"))
    assert running == ["compile() - runs text as code", "exec() - runs text as code"]
    assert {name: lines for name, lines in found.items() if lines} == {}
