"""`fedmon export`: recordings become tables in files of many formats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.log import escape_control
from fedmon.common.options import JobOption, JsonOption, MetricsOption, RecordingsArgument, SinceOption, UntilOption
from fedmon.common.text import sound
from fedmon.report.cli.inputs import times
from fedmon.report.export import FORMATS, format_named, format_of, write, write_text
from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from fedmon.report.export import Table
    from fedmon.report.source import Source

STDOUT = Path("-")
_FORMATS = ", ".join(FORMATS)
ViewName = Literal["perfmon", "nebula"]


def export(
    recording: RecordingsArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file, or - for stdout if the format is text.")],
    format: Annotated[  # noqa: A002
        str | None, typer.Option("--format", "-f", help=f"One of {_FORMATS} (default: by the file's suffix).")
    ] = None,
    metric: MetricsOption = None,
    job: JobOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    tidy: Annotated[bool, typer.Option("--tidy", help="A row for each value instead of a column for each series.")] = (
        False
    ),
    no_rates: Annotated[bool, typer.Option("--no-rates", help="Omit rates; write counters as read.")] = False,
    view: Annotated[ViewName | None, typer.Option(help="Columns with another tool's names and units.")] = None,
    key: Annotated[str | None, typer.Option(help="Under which key an HDF5 file has the table.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another table that an HDF5 file has under the key.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write recordings as a table: a row for each host and time, or for each value."""
    to_stdout = output == STDOUT
    if to_stdout and json:
        raise InvalidInputError("--json prints its summary on stdout, and -o - writes the table there: choose one")
    if to_stdout and format is None:
        texts = ", ".join(name for name, one in FORMATS.items() if one.is_text)
        raise InvalidInputError(f"say --format when the table goes to stdout: one of {texts}")
    chosen = format or format_of(output)
    is_appended = format_named(chosen).is_appended
    if view is not None and (tidy or no_rates or metric or since or until):
        raise InvalidInputError("--view has its own columns: leave --tidy, --no-rates, --metric, --since, --until away")
    since_t, until_t = times(since, until)
    with report_extra("an export"):
        from fedmon.report.frames import TidyTable, WideTable, check_any, key_of
        from fedmon.report.source import Source

        with Source(recording) as source:
            kind = TidyTable if tidy else WideTable
            tables: list[Table] = _viewed(source, view, job) if view is not None else [
                kind(source, metrics=metric or None, job=job, rates=not no_rates, since_t=since_t, until_t=until_t)
            ]  # fmt: skip
            check_any(source, tables)
            if to_stdout:
                if len(tables) > 1:
                    names_of = ", ".join(table.name for table in tables)
                    raise InvalidInputError(f"there are {len(tables)} tables ({names_of}): name a file with --output")
                write_text(tables[0], sys.stdout.buffer, format=chosen)
                return
            names = [source.target(path) for path in _names(output, tables, is_one=is_appended)]
            written: list[dict[str, object]] = []
            for table, path in zip(tables, names, strict=True):
                rows = write(table, path, format=chosen, key=key or key_of(source, job), replace=replace)
                written.append({"path": sound(str(path)), "table": table.name, "rows": rows})
            damaged = source.damage.samples
    _report(written, chosen, damaged, as_json=json)


def _viewed(source: Source, view: ViewName, job: str | None) -> list[Table]:
    from fedmon.report.views import VIEWS

    tables = VIEWS[view](source, job)
    if not tables:
        raise NotFoundError(f"{view} has no name for any of the metrics")
    return tables


def _names(output: Path, tables: list[Table], *, is_one: bool) -> list[Path]:
    """Return a file for each table; several go into separate files, named after them, unless one can hold all."""
    if is_one or len(tables) == 1:
        return [output] * len(tables)
    return [output.with_name(f"{output.stem}-{table.name}{output.suffix}") for table in tables]


def _report(written: list[dict[str, object]], chosen: str, damaged: int, *, as_json: bool) -> None:
    if as_json:
        document = {"format": chosen, "written": written, "damaged_samples": damaged}
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        return
    for one in written:
        sys.stdout.write(f"{escape_control(str(one['path']))}: {one['rows']} rows\n")
    if damaged:
        sys.stdout.write(f"{damaged} samples are damaged and were left out\n")
