"""The owner's commands about datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import ConflictError
from fedmon.node.owner.desk import Desk
from fedmon.node.registers.dataset_records import DatasetRecord
from fedmon.node.registers.dataset_source import Measured


class ListDatasets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which datasets to list: those with every one of ``tags``."""

    tags: list[str] = []


class AddDataset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dataset to offer. The shell has read it already: a large table would keep a running node from its requests."""

    path: str
    name: str
    data_type: str
    tags: list[str]
    description: str = ""
    parameters: dict[str, Any] | None = None
    measured: Measured
    by: str = ""


class OneDataset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dataset by its name or id."""

    dataset: str
    by: str = ""


class EditDataset(OneDataset, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a dataset; ``measured`` comes with a new path or type."""

    name: str | None = None
    tags: list[str] | None = None
    description: str | None = None
    path: str | None = None
    data_type: str | None = None
    parameters: dict[str, Any] | None = None
    measured: Measured | None = None


def list_datasets(desk: Desk, args: ListDatasets) -> dict[str, Any]:
    """List datasets."""
    return {"datasets": [shown(desk, record) for record in desk.datasets.search(args.tags)]}


def show_dataset(desk: Desk, args: OneDataset) -> dict[str, Any]:
    """Show one dataset."""
    return {"dataset": shown(desk, desk.datasets.get(args.dataset))}


def add_dataset(desk: Desk, args: AddDataset) -> dict[str, Any]:
    """Offer a dataset from now on."""
    with desk.database.transaction():
        record = desk.datasets.add(
            args.path,
            name=args.name,
            data_type=args.data_type,
            tags=args.tags,
            description=args.description,
            parameters=args.parameters,
            measured=args.measured,
        )
        _write_down(desk, "dataset-add", record, args.by)
    return {"dataset": shown(desk, record)}


def edit_dataset(desk: Desk, args: EditDataset) -> dict[str, Any]:
    """Change a dataset.

    Raises ConflictError when a rule that hides it from some goes by its present name: under another name everybody
    who is obeyed would see it.
    """
    with desk.database.transaction():
        old = desk.datasets.get(args.dataset)
        rules = desk.settings.policy.datasets
        if args.name not in (None, old.name) and old.name in rules and not {args.name, old.dataset_id} & rules.keys():
            raise ConflictError(
                f"a rule lists dataset {old.name!r} to {', '.join(rules[old.name]) or 'nobody'} by that name: write it "
                f"for {args.name!r} first, with: fedmon node policy allow RESEARCHER --dataset {args.name!r}"
            )
        record = desk.datasets.edit(
            old.dataset_id,
            name=args.name,
            tags=args.tags,
            description=args.description,
            path=args.path,
            data_type=args.data_type,
            parameters=args.parameters,
            measured=args.measured,
        )
        _write_down(desk, "dataset-edit", record, args.by)
    return {"dataset": shown(desk, record)}


def remove_dataset(desk: Desk, args: OneDataset) -> dict[str, Any]:
    """Offer a dataset no longer; its files stay."""
    with desk.database.transaction():
        document = shown(desk, desk.datasets.get(args.dataset))
        _write_down(desk, "dataset-remove", desk.datasets.remove(args.dataset), args.by)
    return {"dataset": document}


def shown(desk: Desk, record: DatasetRecord) -> dict[str, Any]:
    """Return what the owner is shown of a dataset, and the rule about who may see it (null: whoever is obeyed)."""
    rules = desk.settings.policy.datasets
    rule = rules.get(record.dataset_id, rules.get(record.name))
    document: dict[str, Any] = msgspec.to_builtins(record)
    return {**document, "listed_to": None if rule is None else list(rule)}


def _write_down(desk: Desk, event: str, record: DatasetRecord, by: str) -> None:
    """Have the line on the disk before the register commits."""
    facts = {} if event == "dataset-remove" else {"record": msgspec.to_builtins(record)}
    desk.audit.record_durably(
        event, dataset_id=record.dataset_id, name=record.name, tags=list(record.tags), path=record.path, by=by, **facts
    )


DATASET_COMMANDS: Mapping[str, tuple[type[Any], Any]] = {
    "dataset-list": (ListDatasets, list_datasets),
    "dataset-show": (OneDataset, show_dataset),
    "dataset-add": (AddDataset, add_dataset),
    "dataset-edit": (EditDataset, edit_dataset),
    "dataset-remove": (OneDataset, remove_dataset),
}
