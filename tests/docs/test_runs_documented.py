"""What the pages say of runs is complete: every end, every level, every message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from fedmon.common.settings.values import RunsSettings
from fedmon.common.wire import codec
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.runs import JobState, JobStatus, Level, Run, Stop

DOCS = Path(__file__).parents[2] / "docs"


def test_the_how_to_says_what_each_end_of_a_run_means() -> None:
    page = (DOCS / "howtos/running-plans.md").read_text()
    section = page.partition("## How a run ends")[2]

    assert [state.value for state in JobState if state.is_final and f"`{state.value}`" not in section] == []


def test_the_security_page_compares_the_levels_strongest_first_and_names_the_default() -> None:
    page = (DOCS / "security.md").read_text()

    assert "| | " + " | ".join(f"`{level}`" for level in get_args(Level)) + " |" in page
    assert f"**The default is `{RunsSettings().sandbox}`**" in page


@pytest.mark.parametrize("request_type", [Run, Stop, JobStatus])
def test_the_page_of_messages_names_every_field_of_a_request(request_type: type[msgspec.Struct]) -> None:
    page = (DOCS / "topics.md").read_text()
    own = set(request_type.__struct_fields__) - set(Request.__struct_fields__)
    row = next(line for line in page.splitlines() if line.startswith(f"| `{request_type.__struct_config__.tag}`"))

    assert [name for name in sorted(own) if f"`{name}`" not in row] == []


def test_every_request_that_the_page_of_messages_shows_can_be_decoded() -> None:
    page = (DOCS / "topics.md").read_text()
    shown = [text for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"researcher_id"' in text]

    decoded = [codec.decode_request(text.encode()) for text in shown if "fedmon/1" in text]

    assert any(isinstance(message, Run) for message in decoded)
