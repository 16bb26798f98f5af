"""`fedmon node dataset`: the datasets that the node offers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import at_home
from fedmon.common.options import each
from fedmon.common.text import table
from fedmon.node.owner.cli.shell import Shell, fields, group, record, seconds, verb

app = group("dataset", "Offer datasets to researchers; paths never leave the node.")

Which = Annotated[
    str | None, typer.Argument(metavar="DATASET", help="The dataset's name or id, or the beginning of its id.")
]
Name = Annotated[str | None, typer.Option(help="A name that no other dataset has.")]
DataType = Annotated[
    str | None,
    typer.Option("--type", help="csv, tabular, images, medical-folder, mednist, default or custom; csv for *.csv."),
]
Tags = Annotated[
    list[str] | None, typer.Option("--tags", "-t", help="Tags to search by: separated by commas, or given repeatedly.")
]
Description = Annotated[str | None, typer.Option(help="A description for people.")]
Parameters = Annotated[str | None, typer.Option(help="Parameters for training plans: a JSON object.")]
_SHOWN_COLUMNS = 40


@verb(app, "add")
def add(
    shell: Shell,
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="A file (csv, tabular) or folder.")] = None,
    name: Name = None,
    tags: Tags = None,
    data_type: DataType = None,
    description: Description = None,
    parameters: Parameters = None,
) -> None:
    """Offer a dataset.

    The shape of a table and the types of its columns are read from it, the images or subjects of a folder are counted.
    """
    from fedmon.node.registers.dataset_source import measure

    location = at_home(path or shell.ask("PATH", "File or folder")).absolute()
    kind = data_type or ("csv" if location.suffix.lower() in (".csv", ".tsv") else None)
    kind = kind or shell.ask("--type", "Data type", default="images" if location.is_dir() else "csv")
    values = {
        "name": name or shell.ask("--name", "Name", default=location.stem),
        "data_type": kind,
        "tags": each(tags or [shell.ask("--tags", "Tags, separated by commas")], "--tags"),
        "description": description,
        "parameters": _parameters(parameters),
    }
    shell.show("dataset-add", _screen, dataset=values, found=measure(location, kind))


@verb(app, "list")
def list_(shell: Shell, tags: Tags = None) -> None:
    """List the datasets, or those that carry all of the tags."""
    nothing = "No dataset carries these tags." if tags else "No datasets yet. Add one: fedmon node dataset add PATH"
    found = shell.call("dataset-list", tags=each(tags, "--tags") or [])["datasets"]
    unusable = problems(shell, found)
    told = [record(f"no plan gets dataset {name!r}: {problem}") for name, problem in unusable.items()]
    shell.emit(
        {"datasets": found, "unusable": unusable}, lambda: "\n".join([_table(found), *told] if found else [nothing])
    )


@verb(app, "show")
def show(shell: Shell, dataset: Which = None) -> None:
    """Show the record of a dataset."""
    shell.show("dataset-show", _screen, dataset=_named(dataset, shell))


@verb(app, "edit")
def edit(
    shell: Shell,
    dataset: Which = None,
    name: Name = None,
    tags: Tags = None,
    data_type: DataType = None,
    description: Description = None,
    path: Annotated[Path | None, typer.Option(help="Location of the data.")] = None,
    parameters: Parameters = None,
) -> None:
    """Change the given fields; the id stays.

    With --path or --type a table is read anew, also at the same path.
    """
    from fedmon.node.registers.dataset_source import measure

    reference, found = _named(dataset, shell), None
    changes: dict[str, Any] = {
        "name": name,
        "tags": each(tags, "--tags"),
        "data_type": data_type,
        "description": description,
        "parameters": _parameters(parameters),
    }
    if path is None and all(value is None for value in changes.values()):
        raise InvalidInputError("nothing to change: give --name, --tags, --type, --description, --path or --parameters")
    if path is not None or data_type is not None:
        old = shell.call("dataset-show", dataset=reference)["dataset"]
        reference = old["dataset_id"]
        found = measure(path or Path(old["path"]), data_type or old["data_type"])
    shell.show("dataset-edit", _screen, dataset=reference, changes=changes, found=found)


@verb(app, "remove")
def remove(shell: Shell, dataset: Which = None) -> None:
    """Remove a dataset from the offer. Its files stay."""
    shell.show(
        "dataset-remove",
        lambda result: f"removed {result['dataset']['name']}; {result['dataset']['path']} (untouched)",
        dataset=_named(dataset, shell),
    )


def problems(shell: Shell, datasets: list[dict[str, Any]]) -> dict[str, str]:
    """Return by their names the datasets that no plan can be given, with the reason.

    The shell looks, not the node: a file system that hangs would hold up all of its requests.
    """
    from fedmon.node.registers.datasets import DatasetRecord

    found = {each.name: each.problem(shell.folder.path) for each in msgspec.convert(datasets, list[DatasetRecord])}
    return {name: problem for name, problem in found.items() if problem}


def _named(dataset: str | None, shell: Shell) -> str:
    return dataset or shell.ask("DATASET", "Name or id of the dataset")


def _parameters(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidInputError(f"--parameters is not a JSON object: {error}") from None


def _table(datasets: list[dict[str, Any]]) -> str:
    rows = [
        [each["name"], each["data_type"], _shape(each), ", ".join(each["tags"]), _listed_to(each)] for each in datasets
    ]
    return table(["name", "type", "shape", "tags", "listed to"], rows)


def _screen(result: dict[str, Any]) -> str:
    dataset = result["dataset"]
    columns = [f"{name} {kind}" for name, kind in (dataset["dtypes"] or {}).items()]
    more = f", and {len(columns) - _SHOWN_COLUMNS} more (all of them with --json)" if columns[_SHOWN_COLUMNS:] else ""
    parameters = dataset["dataset_parameters"]
    shown = {
        "name": dataset["name"],
        "id": dataset["dataset_id"],
        "type": dataset["data_type"],
        "tags": ", ".join(dataset["tags"]),
        "description": dataset["description"] or "-",
        "shape": _shape(dataset),
        "columns": (", ".join(columns[:_SHOWN_COLUMNS]) + more) or "-",
        "parameters": msgspec.json.encode(parameters).decode() if parameters else "-",
        "path": f"{dataset['path']} (stays here)",
        "listed to": _listed_to(dataset),
        "created": seconds(dataset["created"]),
        "modified": seconds(dataset["modified"]),
    }
    return fields(shown)


def _shape(dataset: dict[str, Any]) -> str:
    return " x ".join(map(str, dataset["shape"])) if dataset["shape"] else "-"


def _listed_to(dataset: dict[str, Any]) -> str:
    from fedmon.node.requests.policy import named

    return named(["*"] if dataset["listed_to"] is None else dataset["listed_to"])
