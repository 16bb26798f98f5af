"""`fedmon node dataset` reads what it offers, refuses what a search could not tell apart, and keeps paths here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.owner.owner_desks import events, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.support.terminal import Terminal

TABLE = "id,age,weight\n1,30,70.5\n2,40,\n3,50,80.1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "b.csv").write_text(TABLE)
    return made_folder(tmp_path / "n")


def _add(folder: Path, file: str, name: str, tags: str) -> tuple[str, ...]:
    return ("dataset", "add", str(folder.parent / file), "--name", name, "--tags", tags)


def test_a_table_is_read_for_its_shape_and_types(folder: Path) -> None:
    words = (*_add(folder, "a.csv", "Ages", "age, weight"), "--parameters", '{"target": "age"}')
    added = told(folder, *words, "--description", "  Three people ")["dataset"]
    listed = told(folder, "dataset", "list")["datasets"]

    assert (added["shape"], added["dtypes"]) == ([3, 3], {"id": "int64", "age": "int64", "weight": "float64"})
    assert (added["data_type"], added["tags"]) == ("csv", ["age", "weight"])
    assert (added["description"], added["dataset_parameters"]) == ("Three people", {"target": "age"})
    assert listed == [added] == [told(folder, "dataset", "show", "Ages")["dataset"]]
    assert events(folder) == ["dataset-add"]


def test_an_edit_keeps_the_id_reads_a_new_path_and_changes_nothing_else(folder: Path) -> None:
    dataset_id = told(folder, *_add(folder, "a.csv", "Ages", "age"))["dataset"]["dataset_id"]
    (folder.parent / "b.csv").write_text(TABLE + "4,60,90\n")
    assert "fedmon node dataset edit" in refused(folder, *_add(folder, "b.csv", "Ages", "b"), code=4)

    edited = told(folder, "dataset", "edit", "Ages", "--name", "Old", "--path", str(folder.parent / "b.csv"))["dataset"]
    (folder.parent / "b.csv").write_text(TABLE)
    later = told(folder, "dataset", "edit", "Old", "--description", "new")["dataset"]

    assert later == edited | {"description": "new", "modified": later["modified"]}
    assert later["modified"] > edited["modified"]
    assert (edited["dataset_id"], edited["name"], edited["shape"]) == (dataset_id, "Old", [4, 3])
    assert told(folder, "dataset", "show", dataset_id)["dataset"] == later
    assert "Ages" in refused(folder, "dataset", "show", "Ages", code=3)


def test_a_dataset_goes_by_four_characters_of_its_id_in_every_verb_and_by_its_whole_name_only(folder: Path) -> None:
    dataset_id = told(folder, *_add(folder, "a.csv", "Ages", "age"))["dataset"]["dataset_id"]
    digits = dataset_id.removeprefix("dataset_")

    for beginning in (digits[:3], f"dataset_{digits[:3]}"):
        assert "at least 4 characters" in refused(folder, "dataset", "remove", beginning, code=2)
    for beginning in ("Age", "data", "dataset_"):
        assert f"no dataset '{beginning}'" in refused(folder, "dataset", "remove", beginning, code=3)
    rules = told(folder, "policy", "allow", "alice", "--dataset", digits[:6])["policy"]["datasets"]
    shown = told(folder, "dataset", "show", digits[:4])["dataset"]
    edited = told(folder, "dataset", "edit", dataset_id[:14], "--name", "Old")["dataset"]
    removed = told(folder, "dataset", "remove", digits[:5])["dataset"]

    assert rules == {dataset_id: ["alice"]}
    assert [each["dataset_id"] for each in (shown, edited, removed)] == [dataset_id] * 3


def test_a_dataset_that_no_plan_gets_is_told_with_the_reason(folder: Path) -> None:
    told(folder, *_add(folder, "b.csv", "Ages", "age"))
    (folder.parent / "b.csv").unlink()

    for reason in ("its path leads to nothing here now", "this node cannot read it as a dataset of type 'csv' now"):
        for words in (("dataset", "list"), ("status",)):
            assert reason in " ".join(node(folder, *words).stdout.split())
        (folder.parent / "b.csv").mkdir(exist_ok=True)
    told(folder, "dataset", "edit", "Ages", "--path", str(folder.parent / "a.csv"))

    assert [told(folder, *words)["unusable"] for words in (("dataset", "list"), ("status",))] == [{}, {}]


def test_a_removed_dataset_is_offered_no_longer_and_its_file_stays(folder: Path) -> None:
    told(folder, *_add(folder, "a.csv", "Ages", "age"))

    assert "(untouched)" in node(folder, "dataset", "remove", "Ages").stdout

    assert told(folder, "dataset", "list")["datasets"] == []
    assert (folder.parent / "a.csv").read_text() == TABLE
    assert events(folder) == ["dataset-add", "dataset-remove"]


def test_a_dataset_that_a_rule_hides_is_not_renamed_into_the_open(folder: Path) -> None:
    told(folder, *_add(folder, "a.csv", "Ages", "age"))
    told(folder, "policy", "allow", "alice", "--dataset", "Ages")

    assert "policy allow" in refused(folder, "dataset", "edit", "Ages", "--name", "Years", code=4)
    told(folder, "policy", "allow", "alice", "--dataset", "Years")

    assert told(folder, "dataset", "edit", "Ages", "--name", "Years")["dataset"]["listed_to"] == ["alice"]
    assert "alice" in node(folder, "dataset", "list").stdout
    told(folder, "policy", "allow", "*", "--dataset", "Years")
    assert "every researcher that is obeyed" in node(folder, "dataset", "list").stdout


def test_every_screen_fits_eighty_columns(folder: Path) -> None:
    name, tags = "A name of many words " * 6, ",".join(f"tag-of-some-length-{n}" for n in range(12))
    verbs = [(*_add(folder, "a.csv", name, tags), "--description", "word " * 60), ("dataset", "list")]

    ran = [node(folder, *words, environ={"COLUMNS": "80"}) for words in (*verbs, ("dataset", "show", name.strip()))]

    for screen in ran:
        assert screen.returncode == 0, screen.stderr
        assert [line for line in screen.stdout.splitlines() if len(line) > 80 and str(folder.parent) not in line] == []
    assert "…" in ran[1].stdout
    assert name.strip() in node(folder, "dataset", "list").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dataset", "add", "x.csv", "--name", "n"), "missing --tags"),
        (("dataset", "add", "x.bin", "--name", "n", "--tags", "t"), "missing --type"),
        (("dataset", "show"), "missing DATASET"),
        (("dataset", "edit", "x"), "nothing to change"),
        (("dataset", "add", "x.csv", "--name", "n", "--tags", "t", "--parameters", "[]"), "--parameters"),
    ],
)
def test_without_a_terminal_what_is_missing_is_named(folder: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(folder, *words, code=2)


def test_at_a_terminal_what_is_missing_is_asked_for(folder: Path) -> None:
    with Terminal("node", "dataset", "add", "--dir", str(folder)) as terminal:
        for question, answer in (("folder", str(folder.parent / "a.csv")), ("Name", ""), ("Tags", "age, weight")):
            terminal.read_until(question)
            terminal.type(answer)
        code, shown = terminal.end()

    assert code == 0, shown
    assert [dataset["name"] for dataset in told(folder, "dataset", "list")["datasets"]] == ["a"]
