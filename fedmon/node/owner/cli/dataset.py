"""`fedmon node dataset`: what the node offers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedmon.common.errors import InvalidInputError
from fedmon.node.owner.cli.reach import Dir, Json, call, login, opened
from fedmon.node.owner.cli.screen import EXIT_CODES, ask, fields, print_json, seconds, table

app = typer.Typer(
    name="dataset",
    help="Offer datasets to researchers; paths never leave the node.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Which = Annotated[str | None, typer.Argument(metavar="DATASET", help="The dataset's name or id.")]
Name = Annotated[str | None, typer.Option(help="A name that no other dataset has.")]
DataType = Annotated[
    str | None,
    typer.Option("--type", help="csv, tabular, images, medical-folder, mednist, default or custom; csv for *.csv."),
]
Tags = Annotated[
    list[str] | None, typer.Option("--tags", "-t", help="Tags to search by: separated by commas, or given repeatedly.")
]
Description = Annotated[str | None, typer.Option(help="What is in it, for people.")]
Parameters = Annotated[
    str | None, typer.Option(help="What training plans must know of it: a JSON object, or @FILE that holds one.")
]


@app.command("add", epilog=EXIT_CODES)
def add(
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="A file (csv, tabular) or folder.")] = None,
    name: Name = None,
    tags: Tags = None,
    data_type: DataType = None,
    description: Description = None,
    parameters: Parameters = None,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Offer a dataset.

    The shape of a table and the types of its columns are read from it, the images or subjects of a folder are counted.
    """
    from fedmon.node.registers.dataset_source import measure

    folder = opened(directory)
    location = (path or Path(ask("PATH", "File or folder", as_json=as_json))).expanduser().absolute()
    kind = data_type or ("csv" if location.suffix.lower() in (".csv", ".tsv") else None)
    kind = kind or ask("--type", "Data type", as_json=as_json, default="images" if location.is_dir() else "csv")
    wanted = name or ask("--name", "Name", as_json=as_json, default=location.stem)
    split = _split(tags) or _split([ask("--tags", "Tags, separated by commas", as_json=as_json)])
    needed = _parameters(parameters)
    measured = measure(location, kind)
    result = call(
        folder,
        "dataset add",
        "dataset-add",
        path=str(location),
        name=wanted,
        data_type=kind,
        tags=split,
        description=description or "",
        parameters=needed,
        measured=msgspec.to_builtins(measured),
        by=login(),
    )
    _print_one(result, "Offered from now on:", as_json=as_json)


@app.command("list", epilog=EXIT_CODES)
def list_(tags: Tags = None, directory: Dir = None, as_json: Json = False) -> None:
    """List what the node offers, or what carries all of the tags."""
    result = call(opened(directory), "dataset list", "dataset-list", tags=_split(tags))
    if as_json:
        print_json(result)
    elif not result["datasets"]:
        print("No dataset carries these tags." if tags else "No datasets yet. Add one: fedmon node dataset add PATH")
    else:
        rows = [_row(dataset) for dataset in result["datasets"]]
        print(table(["NAME", "TYPE", "SHAPE", "TAGS", "LISTED TO"], rows))


@app.command("show", epilog=EXIT_CODES)
def show(dataset: Which = None, directory: Dir = None, as_json: Json = False) -> None:
    """Show everything that is known of a dataset."""
    folder = opened(directory)
    result = call(folder, "dataset show", "dataset-show", dataset=_chosen(dataset, as_json=as_json))
    _print_one(result, "", as_json=as_json)


@app.command("edit", epilog=EXIT_CODES)
def edit(
    dataset: Which = None,
    name: Name = None,
    tags: Tags = None,
    data_type: DataType = None,
    description: Description = None,
    path: Annotated[Path | None, typer.Option(help="Where the data lie now.")] = None,
    parameters: Parameters = None,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Change what is given; the id stays.

    A table is read anew when its path or type changes.
    """
    from fedmon.node.registers.dataset_source import measure

    folder = opened(directory)
    reference = _chosen(dataset, as_json=as_json)
    changes: dict[str, Any] = {
        "name": name,
        "tags": _split(tags) or None,
        "data_type": data_type,
        "description": description,
        "path": str(path.expanduser().absolute()) if path else None,
        "parameters": _parameters(parameters),
    }
    if all(value is None for value in changes.values()):
        raise InvalidInputError("nothing to change: give --name, --tags, --type, --description, --path or --parameters")
    if path is not None or data_type is not None:
        old = call(folder, "dataset edit", "dataset-show", dataset=reference)["dataset"]
        reference = old["dataset_id"]
        measured = measure(Path(changes["path"] or old["path"]), data_type or old["data_type"])
        changes["measured"] = msgspec.to_builtins(measured)
    result = call(folder, "dataset edit", "dataset-edit", dataset=reference, by=login(), **changes)
    _print_one(result, "Changed:", as_json=as_json)


@app.command("remove", epilog=EXIT_CODES)
def remove(dataset: Which = None, directory: Dir = None, as_json: Json = False) -> None:
    """Offer a dataset no longer. Its files are not touched."""
    folder = opened(directory)
    result = call(folder, "dataset remove", "dataset-remove", dataset=_chosen(dataset, as_json=as_json), by=login())
    if as_json:
        print_json(result)
    else:
        print(fields([("removed", result["dataset"]["name"]), ("path", f"{result['dataset']['path']} (untouched)")]))


def _chosen(dataset: str | None, *, as_json: bool) -> str:
    return dataset or ask("DATASET", "Name or id of the dataset", as_json=as_json)


def _split(tags: list[str] | None) -> list[str]:
    return [part.strip() for tag in tags or [] for part in tag.split(",") if part.strip()]


def _parameters(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        content = Path(text[1:]).expanduser().read_bytes() if text.startswith("@") else text.encode()
        return msgspec.json.decode(content, type=dict[str, Any])
    except OSError as error:
        raise InvalidInputError(f"cannot read --parameters {text}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidInputError(f"--parameters is not a JSON object: {error}") from None


def _row(dataset: dict[str, Any]) -> list[str]:
    listed_to = dataset["listed_to"]
    return [
        dataset["name"],
        dataset["data_type"],
        _shape(dataset),
        ", ".join(dataset["tags"]),
        "whoever is obeyed" if listed_to is None else ", ".join(listed_to) or "nobody",
    ]


def _shape(dataset: dict[str, Any]) -> str:
    return " x ".join(map(str, dataset["shape"])) if dataset["shape"] else "-"


def _print_one(result: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    dataset = result["dataset"]
    if sentence:
        print(sentence)
    pairs = _pairs(dataset)
    print(fields([pair for pair in pairs if pair[0] != "columns"] if sentence else pairs))


def _pairs(dataset: dict[str, Any]) -> list[tuple[str, object]]:
    dtypes = dataset["dtypes"] or {}
    columns = ", ".join(f"{name} {kind}" for name, kind in list(dtypes.items())[:40])
    more = f", and {len(dtypes) - 40} more (all of them with --json)" if len(dtypes) > 40 else ""
    parameters = dataset["dataset_parameters"]
    listed_to = dataset["listed_to"]
    return [
        ("name", dataset["name"]),
        ("id", dataset["dataset_id"]),
        ("type", dataset["data_type"]),
        ("tags", ", ".join(dataset["tags"])),
        ("description", dataset["description"] or "-"),
        ("shape", _shape(dataset)),
        ("columns", (columns + more) or "-"),
        ("parameters", msgspec.json.encode(parameters).decode() if parameters else "-"),
        ("path", f"{dataset['path']} (stays here)"),
        ("listed to", "whoever is obeyed" if listed_to is None else ", ".join(listed_to) or "nobody"),
        ("created", seconds(dataset["created"])),
        ("modified", seconds(dataset["modified"])),
    ]
