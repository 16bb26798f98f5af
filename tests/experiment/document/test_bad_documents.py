"""Documents that are none, or that mean harm, are refused by name; nothing in them runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fedmon.experiment.document.errors import (
    ConditionTextError,
    DocumentTooLargeError,
    DuplicateResourceError,
    ExperimentIdError,
    MalformedDocumentError,
    UnknownMemberError,
    UnsafeXmlError,
    ValueFormError,
)

from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.experiment.document import (
    Description,
    DescriptionError,
    ResourceDescription,
    from_toml,
    from_xml,
    read,
    to_toml,
    to_xml,
    write,
)

BOMB = (
    '<!DOCTYPE e [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + ']><experiment exp_id="&j;"/>'
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        '<!DOCTYPE experiment><experiment exp_id="e"/>',
        '<!DOCTYPE e SYSTEM "file:///etc/passwd"><experiment exp_id="e"/>',
        '<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]><experiment exp_id="&x;"/>',
        '<!DOCTYPE e [<!ENTITY % x SYSTEM "http://127.0.0.1:1/x">%x;]><experiment exp_id="e"/>',
    ],
    ids=["bomb", "type", "external type", "external entity", "parameter entity"],
)
def test_declarations_are_refused(text: str) -> None:
    with pytest.raises(UnsafeXmlError):
        from_xml(text)


@pytest.mark.parametrize("closed", [True, False])
def test_xml_that_is_200000_deep_is_refused_at_once(closed: bool) -> None:
    began = time.process_time()
    with pytest.raises(DocumentTooLargeError):
        from_xml("<experiment>" * 200_000 + ("</experiment>" * 200_000 if closed else ""))

    assert time.process_time() - began < 2


@pytest.mark.parametrize("deep", ["a = " + "[" * 200_000, "[" + "a." * 200_000 + "b]", "a = " + "{a=" * 100_000])
def test_deep_toml_is_refused(deep: str) -> None:
    with pytest.raises(DescriptionError):
        from_toml(deep)


@pytest.mark.parametrize(
    "text", ["", " ", "no", "<experiment", "<experiment></rms>", "<a/>", "<experiment/>", b"\xff\xfe", b"<a>\xff</a>",
             b'<?xml version="1.0" encoding="no-such"?><experiment exp_id="e"/>', "<experiment exp_id='e'/><b/>",
             "\x00"]
)  # fmt: skip
def test_what_is_no_experiment_in_xml_is_refused(text: str | bytes) -> None:
    with pytest.raises(DescriptionError):
        from_xml(text)


def test_broken_xml_is_refused_with_the_line() -> None:
    with pytest.raises(MalformedDocumentError, match="line 2"):
        from_xml('<experiment exp_id="e">\n<rms')


def rm(inside: str = "", given: str = "") -> str:
    return (
        f'<experiment exp_id="e"><rms><rm guid="1" rtype="t" {given}>{inside}</rm><rm guid="2" rtype="t"/></rms>'
        "</experiment>"
    )


CODE = "__import__('os').mkdir('harm')"


@pytest.mark.parametrize(
    "inside",
    [
        f'<conditions><condition action="1" group="{CODE}" state="5"/></conditions>',
        f'<conditions><condition action="1" group="[{CODE}]" state="5"/></conditions>',
        f'<conditions><condition action="1" group="[1]" state="{CODE}"/></conditions>',
        f'<conditions><condition action="{CODE}" group="[1]" state="5"/></conditions>',
        f'<conditions><condition action="1" group="[1]" state="5" time="{CODE}"/></conditions>',
        f'<attributes><attribute name="a" value="{CODE}" type="integer"/></attributes>',
        f'<attributes><attribute name="a" value="{CODE}" type="bool"/></attributes>',
        f'<attributes><attribute name="a" value="{CODE}" type="float"/></attributes>',
        f'<connections><connection guid="{CODE}"/></connections>',
    ],
)
def test_code_where_a_number_is_meant_is_refused_and_not_run(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DescriptionError, match="resource 1"):
        from_xml(rm(inside))

    assert list(tmp_path.iterdir()) == []


def test_code_in_a_topology_is_refused_and_code_in_a_text_stays_text() -> None:
    with pytest.raises(ValueFormError, match="node 0"):
        from_xml(
            '<experiment exp_id="e"><topology topo-type="mesh"><nodes>'
            '<node nid="0" nid-type="integer"><node-annotations>'
            f'<node-annotation name="ips" value="[{CODE}]" type="string"/></node-annotations></node></nodes></topology>'
            "</experiment>"
        )
    text = from_xml(rm(f'<attributes><attribute name="a" value="{CODE}" type="string"/></attributes>'))

    assert text.resources[0].attributes == {"a": CODE}


@pytest.mark.parametrize(
    ("inside", "given"),
    [
        ('<attributes><attribute name="a"/></attributes>', ""),
        ('<attributes><attribute name="a" value="x"/><attribute name="a" value="y"/></attributes>', ""),
        ('<attributes><attribute name="a" value="1e400000000000" type="integer"/></attributes>', ""),
        ('<connections><connection guid="1"/></connections>', ""),
        ("", 'state="12"'),
        ("", 'start_time="20149999999999999999"'),
        ("", 'start_time="soon"'),
        ("", 'name="no good"'),
        ('<conditions><condition action="1" group="[1]" state="5" time="2 weeks"/></conditions>', ""),
        ('<conditions><condition action="1" state="5"/></conditions>', ""),
        ('<conditions><condition action="1" group="[2]" metric="m" comparison="~" value="1"/></conditions>', ""),
        ('<conditions><condition action="1" group="[2]" state="5" at_least="2"/></conditions>', ""),
        ('<policies><retry verb="dance" times="1"/></policies>', ""),
    ],
)
def test_what_is_wrong_in_a_resource_is_named(inside: str, given: str) -> None:
    with pytest.raises(DescriptionError):
        from_xml(rm(inside, given))


def test_two_resources_of_one_guid_or_name_are_refused() -> None:
    with pytest.raises(DuplicateResourceError, match="guid 1"):
        from_xml('<experiment exp_id="e"><rms><rm guid="1" rtype="t"/><rm guid="1" rtype="t"/></rms></experiment>')
    with pytest.raises(DuplicateResourceError, match="'a'"):
        from_toml('[experiment]\nid="e"\n[[resource]]\nname="a"\ntype="t"\n[[resource]]\nname="a"\ntype="t"')


@pytest.mark.parametrize(
    "exp_id",
    [
        "..",
        ".",
        "",
        " ",
        "a/b",
        "/etc",
        "../x",
        "a\\b",
        "a\nb",
        "a\x00b",
        "x" * 300,
        " a",
        "..\\x",
        "my exp",
        "-x",
        "é",
    ],
)
def test_an_experiment_id_with_parts_of_a_path_is_refused(exp_id: str) -> None:
    description = Description(exp_id=exp_id)
    for refuse in (to_xml, to_toml):
        with pytest.raises(ExperimentIdError, match="experiment id"):
            refuse(description)
    if exp_id.isprintable():
        with pytest.raises(ExperimentIdError):
            from_xml(f'<experiment exp_id="{exp_id}"/>')
        with pytest.raises(ExperimentIdError):
            from_toml(f"[experiment]\nid = '{exp_id}'")
        if exp_id.strip():
            with pytest.raises(ExperimentIdError, match="run id"):
                from_xml(f'<experiment exp_id="e" run_id="{exp_id}"/>')


@pytest.mark.parametrize("value", [object(), {1: "a"}, b"x", {"a": object()}, {1, 2}])
def test_a_value_that_no_document_holds_is_refused_by_name(value: object) -> None:
    description = Description(exp_id="e", resources=(ResourceDescription(guid=7, rtype="t", attributes={"a": value}),))
    for refuse in (to_xml, to_toml):
        with pytest.raises(ValueFormError, match="resource 7: a"):
            refuse(description)


def test_toml_that_is_wrong_says_where_and_what_there_is() -> None:
    with pytest.raises(MalformedDocumentError, match="line 2"):
        from_toml("a = 1\nb == 2")
    with pytest.raises(DescriptionError, match=r"there is: .*connect"):
        from_toml('[experiment]\nid="e"\n[[resource]]\ntype="t"\nconect=[1]')
    with pytest.raises(DescriptionError, match="resource"):
        from_toml('[experiment]\nid="e"\n[[resource]]\nname="a"')
    with pytest.raises(UnknownMemberError, match=r"'b'.*there is: a"):
        from_toml('[experiment]\nid="e"\n[[resource]]\nname="a"\ntype="t"\nconnect=["b"]')
    with pytest.raises(ConditionTextError, match="resource a: start condition 1"):
        from_toml('[experiment]\nid="e"\n[[resource]]\nname="a"\ntype="t"\nstart=["sometime"]')
    with pytest.raises(ValueFormError, match="date"):
        from_toml('[experiment]\nid="e"\n[[resource]]\ntype="t"\nattributes={when = 2026-01-01}')


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text("<a/>")
    (tmp_path / "folder.xml").mkdir()

    with pytest.raises(NotFoundError, match=r"no\.xml"):
        read(tmp_path / "no.xml")
    with pytest.raises(DescriptionError, match=r"bad\.xml"):
        read(tmp_path / "bad.xml")
    with pytest.raises(StorageError, match=r"folder\.xml"):
        read(tmp_path / "folder.xml")
    with pytest.raises(InvalidInputError, match=r"\.toml"):
        read(tmp_path / "exp.json")
    with pytest.raises(StorageError):
        write(Description(exp_id="e"), tmp_path / "bad.xml" / "x.xml")
