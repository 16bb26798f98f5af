"""The source of training plans: checked, and shown with nothing hidden."""

from __future__ import annotations

import difflib
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.common.log import is_hidden
from fedmon.node.registers.grants import Declared
from fedmon.node.registers.plan_check import CPU_S, MEMORY_BYTES

MAX_NAME_LENGTH = 256
MAX_TEXT_LENGTH = 16_384
CHECK_TIMEOUT_S = 15.0
MAX_PROBLEM_LENGTH = 500
OPEN, CLOSE = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""They enclose the code of a hidden character; a plan that holds them itself has them shown in the same way."""

_KILLED = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGKILL)  # with its control group, or for memory
_SCRIPT = Path(__file__).with_name("plan_check.py")
_UNUSUAL = re.compile(r"[^\t\n -~]")
_MAX_COMPARED = 1_000_000
_CONTEXT_LINES = 3


class CodeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The finding of a plan's check: the digest of the code's minified form, or the problem.

    It counts as code that ``parses`` unless the check found that it does not; else its researchers are told. Without
    ``is_final`` the plan could not be read at this moment, and is read again.
    """

    minified_sha256: str | None = None
    problem: str = ""
    parses: bool = True
    declared: Declared = Declared()
    is_final: bool = True


def check_source(source: bytes, *, timeout_s: float = CHECK_TIMEOUT_S) -> CodeCheck:
    """Run the check of a plan in a limited child process, and return the last finding that it printed whole."""
    command = [sys.executable, "-I", "-X", "utf8", str(_SCRIPT)]
    try:
        child = subprocess.run(
            command, input=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/",
            timeout=timeout_s, check=False, start_new_session=True,  # Ctrl-C is for the node alone
        )  # fmt: skip
        printed, is_final = child.stdout, child.returncode not in _KILLED
        within = f"{CPU_S} s of processor time and {MEMORY_BYTES >> 20} MB (ended with {child.returncode})"
    except subprocess.TimeoutExpired as error:
        printed, is_final, within = error.stdout or b"", False, f"{timeout_s:g} s"
    except OSError as error:
        return CodeCheck(problem=f"could not be checked: {error.strerror}", is_final=False)
    try:
        check = msgspec.json.decode(printed.rpartition(b"\n")[0].rpartition(b"\n")[2], type=CodeCheck)
    except msgspec.MsgspecError:
        return CodeCheck(problem=f"could not be read within {within}", is_final=is_final)
    return msgspec.structs.replace(check, problem=visible_text(check.problem)[:MAX_PROBLEM_LENGTH])


def check_now(source: bytes) -> CodeCheck:
    """Return the final finding of a plan's check. Raises ConflictError if the plan cannot be read at this moment."""
    check = check_source(source)
    if not check.is_final:
        raise ConflictError(f"the plan {check.problem}: try again")
    return check


def checked_name(source: bytes, name: str, description: str, *, max_bytes: int) -> str:
    """Return the trimmed name of a plan. Raises InvalidInputError when name, bytes or description cannot be used."""
    if len(source) > max_bytes:
        raise InvalidInputError(f"the plan has more than the {max_bytes} bytes that this node takes")
    if not source.strip():
        raise InvalidInputError("the plan is empty")
    name = checked_line(name, "a plan's name", MAX_NAME_LENGTH)
    if len(description) > MAX_TEXT_LENGTH:
        raise InvalidInputError(f"the description has {len(description)} characters, more than {MAX_TEXT_LENGTH}")
    return name


def checked_line(text: str, what: str, longest: int) -> str:
    """Return a trimmed text. Raises InvalidInputError unless it is one line of visible characters."""
    line = text.strip()
    if not line or len(line) > longest or "\n" in line or "\t" in line or visible_text(line) != line:
        raise InvalidInputError(
            f"{what} is 1 to {longest} visible characters on one line, not {visible_text(line[:80])!r}"
        )
    return line


def visible(source: bytes) -> str:
    """Return a plan's text with every control, bidirectional and invisible character written out.

    Tabs, line feeds and visible characters stay. ``⟦U+202E⟧`` stands for a character, ``⟦0xFF⟧`` for a byte that is not
    UTF-8. Different bytes always give different texts.
    """
    return _UNUSUAL.sub(_shown, source.decode("utf-8", "surrogateescape"))


def visible_text(text: str) -> str:
    """Return a text with every control, bidirectional and invisible character written out, as `visible` does."""
    return _UNUSUAL.sub(_shown, text)


def diff(old: bytes, new: bytes, *, old_name: str = "approved", new_name: str = "asked for") -> str:
    """Return the unified difference of two plans in their visible forms; empty when the bytes are the same."""
    before, after = visible(old).split("\n"), visible(new).split("\n")
    heading = [f"--- {visible_text(old_name)}", f"+++ {visible_text(new_name)}"]
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    taken, put = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(taken) * len(put) <= _MAX_COMPARED:
        lines = list(difflib.unified_diff(before, after, n=_CONTEXT_LINES, lineterm=""))[2:]
    else:  # comparing so many lines one by one would take minutes
        lines = [f"@@ -{head + 1},{len(taken)} +{head + 1},{len(put)} @@"]
        lines += [*(f"-{line}" for line in taken), *(f"+{line}" for line in put)]
    return "\n".join(heading + lines) + "\n" if lines else ""


def _common(left: list[str], right: list[str]) -> int:
    """Count how many lines two lists share from their start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(left), len(right)))


def _shown(found: re.Match[str]) -> str:
    character = found.group()
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"{OPEN}0x{code - 0xDC00:02X}{CLOSE}"
    if character in (OPEN, CLOSE) or is_hidden(character):
        return f"{OPEN}U+{code:04X}{CLOSE}"
    return character
