"""`fedmon node add-scalar`: a value of a program that runs beside the node."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmon.node.owner.cli.reach import Dir, Json, connected, opened
from fedmon.node.owner.cli.screen import EXIT_CODES, one_line, print_json
from fedmon.node.owner.control import DaemonNotRunningError


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    # A negative value is no option.
    app.command("add-scalar", epilog=EXIT_CODES, context_settings={"ignore_unknown_options": True})(add_scalar)


def add_scalar(
    name: Annotated[str, typer.Argument(help="What the value is called: any text of up to 256 characters.")],
    value: Annotated[str, typer.Argument(help="A number; nan and inf are kept as a missing value with its reason.")],
    step: Annotated[int | None, typer.Option(help="The program's own count, such as the epoch.")] = None,
    job: Annotated[str | None, typer.Option(help="Id of the job that the value belongs to.")] = None,
    time: Annotated[
        float | None, typer.Option("--time", help="When it was, in Unix seconds; now when not given.")
    ] = None,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Report a value, such as an accuracy, to the running node.

    It goes out and is kept on the time axis of what the node measures, in the stream user.
    """
    folder = opened(directory)
    client = connected(folder)
    if client is None:
        raise DaemonNotRunningError(
            f"the node of {folder.path} is not running, so nobody takes the value: start it with 'fedmon node start'"
        )
    with client:
        document = client.call("add-scalar", name=name, value=value, step=step, t=time, job=job)
    if as_json:
        print_json(document)
    else:
        print(f"{one_line(name)} = {one_line(value)}")
