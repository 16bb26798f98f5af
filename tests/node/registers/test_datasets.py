"""What a node offers is described well, told apart by its tags, and its path never leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.errors import ConflictError, InvalidInputError
from fedmon.node.registers.database import Database
from fedmon.node.registers.dataset_source import DatasetShape, measure
from fedmon.node.registers.datasets import DATA_TYPES, DatasetFields, DatasetRecord, DatasetRegister
from tests.support.requirements import require
from tests.support.rights import as_nobody


@pytest.fixture
def register(database: Database) -> DatasetRegister:
    return DatasetRegister(database)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text("age,weight,sex\n42,71.5,f\n51,,m\n")
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for name in ("a/1.PNG", "a/2.jpeg", "b/3.nii.gz", "b/notes.txt", "b/README"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def _add(register: DatasetRegister, path: Path | str, /, **fields: Any) -> DatasetRecord:
    given = {"name": "patients", "data_type": "csv", "tags": ["mri", "brain"], **fields}
    return register.add(DatasetFields(**given), measure(Path(path), given["data_type"]))


def test_images_and_subjects_are_counted_and_other_types_need_only_be_there(
    register: DatasetRegister, images: Path
) -> None:
    record = _add(register, images, data_type="images")
    folder = _add(register, images, name="subjects", data_type="medical-folder", tags=["other"])

    assert (record.shape, record.dtypes) == ([3], None)
    assert (folder.shape, folder.dtypes) == ([2], None)
    for other in ("default", "mednist", "custom"):
        assert _add(register, images, name=other, data_type=other, tags=[other]).shape is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"data_type": "parquet"}, f"'parquet' is not one of {', '.join(DATA_TYPES)}"),
        ({"name": " "}, "name is 1 to 256 visible characters"),
        ({"name": "x" * 257}, "name is 1 to 256 visible characters"),
        ({"name": "a\nb"}, "name is 1 to 256 visible characters"),
        ({"name": "evil\u202e"}, r"⟦U\+202E⟧"),
        ({"name": "dataset_01234567-89ab-cdef-0123-456789abcdef"}, "looks like a dataset id"),
        ({"tags": []}, "1 to 64 tags, not 0"),
        ({"tags": [str(number) for number in range(65)]}, "1 to 64 tags, not 65"),
        ({"tags": ["a", " "]}, "a tag is 1 to 256 visible characters"),
        ({"tags": ["\x1b[2J"]}, r"⟦U\+001B⟧"),
        ({"description": "x" * 4097}, "a description is at most 4096"),
        ({"description": "\x07"}, r"⟦U\+0007⟧"),
        ({"dataset_parameters": {"x": object()}}, "cannot be written as JSON"),
        ({"dataset_parameters": {"x": "y" * 50_000}}, "shorten tags or parameters"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(
    register: DatasetRegister, table: Path, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        _add(register, table, **fields)

    assert register.all() == []


def test_a_path_through_a_link_is_kept_as_where_it_led_when_it_was_added(
    register: DatasetRegister, table: Path, tmp_path: Path
) -> None:
    # given a link to a table
    link = tmp_path / "link.csv"
    link.symlink_to(table)
    added = _add(register, link)

    # when the link leads elsewhere, and something else of the dataset is changed
    link.unlink()
    link.symlink_to("/etc/passwd")
    register.edit(added.dataset_id, DatasetFields(description="newer"))

    # then the dataset is where it was
    assert register.get(added.dataset_id).path == str(table.resolve())


def test_what_is_not_there_or_of_another_kind_is_refused(register: DatasetRegister, table: Path, images: Path) -> None:
    refusals = [
        (table.with_name("nowhere.csv"), "csv", "nowhere.* not found"),
        (images, "csv", "is not a file"),
        (images / "a" / "1.PNG", "csv", "is an empty file"),
        (table, "images", "is not a folder"),
        (table, "medical-folder", "is not a folder"),
        (images / "a", "medical-folder", "subject.s folder not found in"),
        (table.with_name("nowhere"), "custom", "nowhere.* not found"),
        (Path("x" * 300), "custom", "File name too long|not found"),
        (Path("a\0b"), "custom", "cannot be used"),
        (Path("~no-such-user/x"), "custom", "cannot be used"),
        (Path("bad\udc80name"), "custom", "cannot be used"),
    ]

    for path, data_type, complaint in refusals:
        with pytest.raises(InvalidInputError, match=complaint):
            _add(register, path, data_type=data_type)

    assert register.all() == []


@pytest.mark.parametrize("tags", [["mri", "brain"], ["brain", "mri"], ["mri"], ["mri", "brain", "2024"]])
def test_tags_that_a_search_could_not_tell_apart_are_refused(
    register: DatasetRegister, table: Path, tags: list[str]
) -> None:
    _add(register, table)

    with pytest.raises(ConflictError, match=r"dataset 'patients' \(brain, mri\)"):
        _add(register, table, name="second", tags=tags)

    assert len(register.all()) == 1


def test_a_search_finds_what_carries_every_tag(register: DatasetRegister, table: Path) -> None:
    for name, tags in (("a", ["mri", "brain"]), ("b", ["mri", "heart"]), ("c", ["ct"])):
        _add(register, table, name=name, tags=tags)

    def found(*tags: str) -> str:
        return "".join(record.name for record in register.search(tags))

    assert [found("mri"), found("mri", "heart"), found("ct", "mri"), found("MRI"), found()] == [
        "ab", "b", "", "", "abc",
    ]  # fmt: skip


def test_neither_path_nor_anything_like_one_is_listed(register: DatasetRegister, table: Path) -> None:
    secret = {
        "tabular_file": "participants.csv",
        "Mask_Path": "x",
        "output_dir": 1,
        "source": "/data/hospital/secret",
        "windows": "C:\\data\\secret",
        "home": "~/secret",
        "several": ["ok", "data/secret"],
        "nested": {"file": "secret", "kept": 1, "deeper": {"x": "/secret", "y": 2}},
        "objects": [{"file": "secret"}],
    }

    listed = _add(
        register, table, dataset_parameters={**secret, "target": "sex", "columns": ["age"], "scale": 2.5}
    ).listed()

    encoded = msgspec.json.encode(listed).decode()
    assert listed.dataset_parameters == {
        "target": "sex", "columns": ["age"], "scale": 2.5, "nested": {"kept": 1, "deeper": {"y": 2}},
    }  # fmt: skip
    assert str(table.parent) not in encoded
    assert "secret" not in encoded
    assert '"path"' not in encoded


def test_very_many_columns_are_listed_by_their_number_alone(register: DatasetRegister, table: Path) -> None:
    table.write_text(",".join(f"gene{n}" for n in range(5000)) + "\n" + ",".join("1" for _ in range(5000)) + "\n")

    record = _add(register, table)

    assert record.dtypes is not None
    assert len(record.dtypes) == 5000
    assert (record.listed().shape, record.listed().dtypes) == ([1, 5000], None)


def test_an_edit_is_checked_like_an_addition_and_changes_nothing_when_refused(
    register: DatasetRegister, table: Path
) -> None:
    first = _add(register, table)
    second = _add(register, table, name="second", tags=["heart"])

    for fields, error in (
        ({"name": "patients"}, ConflictError),
        ({"tags": ["mri"]}, ConflictError),
        ({"tags": []}, InvalidInputError),
        ({"data_type": "parquet"}, InvalidInputError),
    ):
        with pytest.raises(error):
            register.edit("second", DatasetFields(**fields))

    assert register.all() == [first, second]
    assert register.edit("second", DatasetFields(tags=("heart",))).tags == ("heart",)
    moved = register.edit("second", DatasetFields(), DatasetShape(path="/hanging/mount", shape=[7]))
    assert (moved.path, moved.shape) == ("/hanging/mount", [7])


def test_what_an_undone_transaction_added_is_not_remembered(
    database: Database, register: DatasetRegister, table: Path
) -> None:
    first = _add(register, table)
    inside: list[int] = []

    def fail() -> None:
        with database.transaction():
            _add(register, table, name="second", tags=["heart"])
            inside.append(len(register.all()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert inside == [2]
    assert register.all() == [first]
    register.all().clear()
    assert register.all() == [first]


def test_data_that_the_user_of_a_node_may_not_reach_are_not_told_as_gone(
    register: DatasetRegister, table: Path, tmp_path: Path
) -> None:
    require(os.geteuid() == 0, "only root can drop its rights")
    record = _add(register, table)
    tmp_path.chmod(0o700)

    with as_nobody():
        problem = record.problem(Path("/node"))

    assert problem == "this node cannot read it as a dataset of type 'csv' now"
