"""Ids and digests of messages become names of files, topics and cgroups: they hold what they may, to the last byte."""

from __future__ import annotations

import msgspec
import pytest

from fedmon.common.wire.envelope import Id, Sha256


@pytest.mark.parametrize(
    "text", ["", "a" * 65, "a\n", "\na", "a b", "a/b", "..", "a\0", "\N{LATIN SMALL LETTER E WITH ACUTE}", "a\r\n"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(text), type=Id)


@pytest.mark.parametrize("text", ["a" * 63, "a" * 64 + "\n", "A" * 64, "g" * 64])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(text), type=Sha256)
