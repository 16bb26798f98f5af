"""`fedmon node probe`: what this machine measures, how, and why not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fedmon.node.owner.cli.reach import Dir, Json, default_folder
from fedmon.node.owner.cli.screen import EXIT_CODES, fields, print_json

if TYPE_CHECKING:
    from fedmon.common.settings import NodeSettings
    from fedmon.node.measure.survey import MetricGroup, Survey

_GIGABYTE = 1_000_000_000


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("probe", epilog=EXIT_CODES)(probe)


def probe(
    directory: Dir = None,
    proc: Annotated[Path | None, typer.Option(help="A folder that stands in for /proc.")] = None,
    sys: Annotated[Path | None, typer.Option(help="A folder that stands in for /sys.")] = None,
    cgroup: Annotated[Path | None, typer.Option(help="A folder that stands in for /sys/fs/cgroup.")] = None,
    as_json: Json = False,
) -> None:
    """Show what this machine measures, from which source, how often, and why not; and what it is made of.

    Needs no running node, and no node at all: without a folder the default settings hold. With folders that stand in
    for those of the kernel, the results are marked as simulated.
    """
    from fedmon.node.measure.survey import survey

    path, settings = _settings(directory)
    given = {"proc_root": proc, "sys_root": sys, "cgroup_root": cgroup}
    roots = {name: root.absolute() for name, root in given.items() if root is not None}
    metrics = msgspec.structs.replace(settings.metrics, **roots)
    found = survey(msgspec.structs.replace(settings, metrics=metrics))
    where = {name: str(getattr(metrics, f"{name}_root")) for name in ("proc", "sys", "cgroup")}
    if as_json:
        document: dict[str, Any] = msgspec.to_builtins(found)
        print_json({"settings": path, "roots": where, **document})
        return
    mark = "SIMULATED: trees of files stand in for this machine.\n" if found.simulated else ""
    print(f"{mark}Read from {', '.join(where.values())}.")
    print(f"Settings: {path or 'the defaults, since there is no node'}.")
    for group in found.groups:
        print(f"\n{_block(group)}")
    print(f"\nMachine{' (simulated)' if found.simulated else ''}\n{_machine(found)}")


def _settings(directory: Path | None) -> tuple[str | None, NodeSettings]:
    """Return the settings file and what it says; the defaults where no folder is named and none is at its place."""
    from fedmon.common.settings import NodeSettings, broker_from_url, load_node
    from fedmon.common.settings.broker import DEFAULT_URL
    from fedmon.node.folder import NodeFolder

    if directory is None and not (default_folder() / "node.toml").exists():
        return None, NodeSettings(id="probe", broker=broker_from_url(DEFAULT_URL))
    folder = NodeFolder.open(directory or default_folder())
    return str(folder.settings_file), load_node(folder.path, os.environ)


def _block(group: MetricGroup) -> str:
    """Return what one group measures, by source, and below it what it does not, by reason."""
    from fedmon.node.measure.survey import by_source

    measured = [finding for finding in group.metrics if finding.reason is None]
    absent = [finding for finding in group.metrics if finding.reason is not None]
    title = f"{group.name}: {len(measured)} of {len(group.metrics)} metrics, every {group.every}"
    lines = [title.replace("every each", "each")]
    for source, findings in by_source(measured):
        names = ", ".join(f"{each.name} ({each.series})" if each.series > 1 else each.name for each in findings)
        lines.append(_indented([(f"from {source}", names)]))
        lines += [_indented([(f"except {key}", why)]) for each in findings for key, why in each.missing.items()]
    for reason, findings in by_source(absent):
        names = ", ".join(each.name for each in findings) if measured or len(findings) <= _FEW else "all of them"
        lines.append(_indented([(f"absent ({reason})", names)]))
    return "\n".join(lines)


_FEW = 3


def _indented(pairs: list[tuple[str, str]]) -> str:
    """Return a heading, and under it what belongs to it."""
    return "\n".join(f"{fields([('  ', head)])}\n{fields([('      ', text)])}" for head, text in pairs)


def _machine(found: Survey) -> str:
    machine = found.hardware
    reasons: dict[str, str] = machine["reasons"]
    pairs = [
        (name, _told(name, value, reasons))
        for name, value in machine.items()
        if name not in ("reasons", "notes", "simulated")
    ]
    pairs += [(f"{name} note", text) for name, text in machine["notes"].items()]
    return fields(pairs)


def _told(name: str, value: Any, reasons: dict[str, str]) -> str:
    if value is None:
        return f"unknown ({reasons[name]})" if name in reasons else "none"
    if isinstance(value, list):
        return "\n".join(_one(each) for each in value) or "none"
    return f"{value / _GIGABYTE:.1f} GB" if name.endswith("_bytes") else str(value)


def _one(part: dict[str, Any]) -> str:
    """Return a part of the machine on one line; what is unknown of it is left out."""
    told = []
    for name, value in part.items():
        if value is None or value == []:
            continue
        if name.endswith("_bytes"):
            told.append(f"{value / _GIGABYTE:.1f} GB" if value >= _GIGABYTE else f"{value / 1024:.0f} KiB")
        else:
            told.append(f"{name} {', '.join(value) if isinstance(value, list) else value}")
    return ", ".join(told)
