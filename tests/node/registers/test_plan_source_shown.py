"""A reader of a plan sees everything that is in it, and nothing in it steers the terminal."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.node.registers.plan_source import diff, visible, visible_text

SAMPLES = {
    "terminal colour": (b"\x1b[31mred\x1b[0m", "⟦U+001B⟧[31mred⟦U+001B⟧[0m"),
    "terminal title": (b"\x1b]0;owned\x07", "⟦U+001B⟧]0;owned⟦U+0007⟧"),
    "overwritten line": (b"safe()\rrm()", "safe()⟦U+000D⟧rm()"),
    "backspace": (b"a\x08b", "a⟦U+0008⟧b"),
    "delete": (b"a\x7fb", "a⟦U+007F⟧b"),
    "null": (b"a\x00b", "a⟦U+0000⟧b"),
    "one byte control": ("a\x9b31mb".encode(), "a⟦U+009B⟧31mb"),
    "next line": ("a\x85b".encode(), "a⟦U+0085⟧b"),
    "right to left": ("x = 1 # \u202e }if".encode(), "x = 1 # ⟦U+202E⟧ }if"),
    "isolate": ("a\u2066b\u2069".encode(), "a⟦U+2066⟧b⟦U+2069⟧"),
    "line separator": ("a\u2028b\u2029".encode(), "a⟦U+2028⟧b⟦U+2029⟧"),
    "zero width": ("user\u200b\u200d\ufeff".encode(), "user⟦U+200B⟧⟦U+200D⟧⟦U+FEFF⟧"),
    "hidden tags": ("a\U000e0041".encode(), "a⟦U+E0041⟧"),
    "variation selector": ("a\ufe0f\U000e0100".encode(), "a⟦U+FE0F⟧⟦U+E0100⟧"),
    "blank letters": ("a\u3164\u115f\uffa0\u2800".encode(), "a⟦U+3164⟧⟦U+115F⟧⟦U+FFA0⟧⟦U+2800⟧"),
    "no-break space": ("if\u00a0x\u3000".encode(), "if⟦U+00A0⟧x⟦U+3000⟧"),
    "not UTF-8": (b"a\xff\xc3(", "a⟦0xFF⟧⟦0xC3⟧("),
    "encoded surrogate": (b"\xed\xa0\x80", "⟦0xED⟧⟦0xA0⟧⟦0x80⟧"),
    "posing as hidden": ("⟦U+202E⟧".encode(), "⟦U+27E6⟧U+202E⟦U+27E7⟧"),
}
HARMLESS = "def f(x):\n\treturn 'é漢字Ω' + \"ß\" # ok ~\n"


@pytest.mark.parametrize("name", SAMPLES)
def test_what_hides_or_steers_is_written_out(name: str) -> None:
    source, shown = SAMPLES[name]

    assert visible(source) == shown
    assert all(unicodedata.category(character) not in {"Cc", "Cf", "Zl", "Zp"} for character in visible(source))


def test_ordinary_text_stays_as_it_is() -> None:
    assert visible(HARMLESS.encode()) == HARMLESS
    assert visible_text(HARMLESS) == HARMLESS


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_control_character_remains_and_nothing_is_lost(source: bytes) -> None:
    shown = visible(source)

    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} and c not in "\t\n"]
    assert shown.isascii() or any(byte > 126 or byte < 32 for byte in source)
    assert _hidden_again(shown) == source


def _hidden_again(shown: str) -> bytes:
    """Turn a visible form back into the bytes it stands for."""
    source, rest = b"", shown
    while rest:
        text, opened, rest = rest.partition("⟦")
        source += text.encode()
        if opened:
            code, _, rest = rest.partition("⟧")
            number = int(code.removeprefix("U+").removeprefix("0x"), 16)
            source += bytes([number]) if code.startswith("0x") else chr(number).encode()
    return source


def test_the_same_bytes_have_no_difference_and_a_last_line_feed_is_one() -> None:
    assert diff(b"a\n", b"a\n") == ""
    assert diff(b"a\n", b"a") != ""
    assert diff(b"a\r\n", b"a\n") != ""


def test_plans_made_to_be_slow_to_compare_are_shown_as_a_whole() -> None:
    old = b"start\n" + b"".join(b"x%d\n" % (number % 150) for number in range(20_000)) + b"end\n"
    new = b"start\n" + b"".join(b"x%d\n" % (number % 151) for number in range(20_000)) + b"end\n"
    start = time.thread_time()

    shown = diff(old, new).splitlines()

    assert time.thread_time() - start < 2
    old_lines = [line[1:] for line in shown[3:] if line[0] in "- "]
    new_lines = [line[1:] for line in shown[3:] if line[0] in "+ "]
    first = int(shown[2].removeprefix("@@ -").partition(",")[0]) - 1
    assert old_lines == old.decode().split("\n")[first : first + len(old_lines)]
    assert new_lines == new.decode().split("\n")[first : first + len(new_lines)]
    assert shown[2] == f"@@ -{first + 1},{len(old_lines)} +{first + 1},{len(new_lines)} @@"
