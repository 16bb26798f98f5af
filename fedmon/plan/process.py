"""The process that a plan runs in: from the bytes of its source to its result, or to why there is none."""

from __future__ import annotations

# `os` takes several milliseconds to import where nothing has done so yet, and these are the same functions.
import posix
import sys

from fedmon.plan import frames
from fedmon.plan import job as handed
from fedmon.plan.channel import Channel, ChannelClosedError
from fedmon.plan.context import Context
from fedmon.plan.dataset import Dataset
from fedmon.plan.parcels import InvalidValuesError, Packed, TooLargeError, pack
from fedmon.plan.plan_class import NoPlanError, compiled, execute, find
from fedmon.plan.problem import Problem, complain, raised, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


def main(runtime: str) -> NoReturn:
    """Run the plan behind the descriptors, send its result or failure, and end the process.

    ``runtime`` is the folder that fedmon itself lies in. The process ends as soon as the result is sent, whatever
    threads of the plan still do; with 0 after a result, and never with 0 without one.
    """
    channel = Channel(handed.CHANNEL)
    code = 1
    try:
        try:
            channel.send(frames.BEGUN, {})
            channel.send_result(_result(runtime, channel))
            code = 0
        except Problem as problem:
            complain(problem.fields["traceback"] or problem.fields["reason"])
            code = problem.exit_code
            channel.send(frames.FAILURE, problem.fields)
    except ChannelClosedError as error:
        code = 1
        complain(str(error))
    except BaseException as error:  # noqa: BLE001 - there is nobody above to tell it to
        code = 1
        _tell_at_last(channel, error)
    finally:
        _flush()
        posix._exit(code)  # noqa: SLF001 - this is its public name


def _tell_at_last(channel: Channel, error: BaseException) -> None:
    """Say that something failed that never should: a plan can break what runs it, as both are one process."""
    kind = type(error).__name__
    reason = f"the plan ended in a way that could not be looked into ({kind})"
    complain(reason)
    try:
        channel.send(frames.FAILURE, refused(reason, kind=kind).fields)
    except BaseException:  # noqa: BLE001 - its exit code says that it failed, and its stderr why
        return


def _result(runtime: str, channel: Channel) -> Packed:
    _prepare_streams()
    job = handed.read_job(handed.JOB)
    source = handed.read_all(handed.SOURCE)
    filename = file_name(job["name"])
    sys.path[:] = list(dict.fromkeys([*sys.path, runtime, *job["path"]]))
    sys.argv[:] = [filename]
    run = _Run(source, filename)
    context = Context(
        job_id=job["job_id"],
        node_id=job["node_id"],
        dataset=handed.dataset_of(job),
        arguments=job["arguments"],
        inputs=_inputs(job),
        channel=channel,
    )
    return run.packed(context, job["output_bytes"])


def _inputs(job: dict[str, Any]) -> dict[str, Any]:
    if job["inputs_format"] is None:
        return {}
    try:
        return handed.read_inputs(handed.INPUTS, job["inputs_format"])
    except InvalidValuesError as error:
        raise refused(f"the inputs cannot be read: {error}", kind="InvalidValuesError") from None


class _Run:
    """One plan on its way to a result; every step raises Problem."""

    def __init__(self, source: bytes, filename: str) -> None:
        self._source, self._filename = source, filename

    def packed(self, context: Context, output_bytes: int) -> Packed:
        """Return what the plan returned, ready to be sent."""
        code = self._compiled()
        defined = self._call(
            lambda: execute(code, self._source, self._filename), "the plan raised {what} as it was loaded{where}"
        )
        kind = self._found(defined)
        made = f"{_literal(kind.__name__)}() raised {{what}}{{where}}: a plan is made without arguments"
        plan = self._call(kind, made)
        if not self._call(lambda: callable(getattr(plan, "run", None)), "looking for its run raised {what}{where}"):
            raise refused(f"the plan's class {kind.__name__} has no method run(self, context)", kind="NoPlanError")
        result = self._call(lambda: plan.run(context), "the plan raised {what}{where}")
        return self._pack(result, output_bytes)

    def _compiled(self) -> Any:
        try:
            return compiled(self._source, self._filename)
        except SyntaxError as error:
            line = f" (line {error.lineno})" if error.lineno else ""
            raise self._raised(error, _literal(f"the plan is no Python: {error.msg}{line}")) from None
        except UnicodeDecodeError as error:
            raise self._raised(error, f"the plan is no Python: it is not UTF-8 (byte {error.start})") from None
        except (ValueError, MemoryError, RecursionError) as error:
            raise self._raised(error, "the plan is no Python: {what}") from None

    def _found(self, defined: dict[str, Any]) -> Any:
        try:
            return find(defined)
        except NoPlanError as error:
            raise refused(str(error), kind="NoPlanError") from None
        except BaseException as error:  # noqa: BLE001 - a metaclass of the plan's own may raise anything
            raise self._raised(error, "looking for the plan's class raised {what}{where}") from None

    def _call(self, step: Callable[[], Any], reason: str) -> Any:
        """Do one step of the plan's own code, which may raise anything at all."""
        try:
            return step()
        except ChannelClosedError:
            raise
        except SystemExit as error:
            raise self._exited(error) from None
        except ModuleNotFoundError as error:
            raise self._raised(error, _missing(error) or reason) from None
        except AttributeError as error:
            raise self._raised(error, reason + _without_dataset(error)) from None
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the plan and not this process
            raise self._raised(error, reason) from None

    def _pack(self, result: Any, output_bytes: int) -> Packed:
        try:
            return pack(result, max_bytes=output_bytes)
        except TooLargeError as error:
            reason = f"the result has more than {error.max_bytes} bytes, which is what this job may return"
            raise refused(reason, state=frames.OUTPUT_LIMIT, kind="TooLargeError") from None
        except InvalidValuesError as error:
            reason = f"run() returned {error}" if not hasattr(result, "items") else f"the result: {error}"
            raise refused(reason, state=frames.INVALID_RESULT, kind="InvalidValuesError") from None
        except Exception as error:  # noqa: BLE001 - a mapping of the plan's own may raise anything
            problem = self._raised(error, "reading the result raised {what}{where}")
            if not isinstance(error, MemoryError):
                problem.fields["state"] = frames.INVALID_RESULT
            raise problem from None

    def _exited(self, error: SystemExit) -> Problem:
        code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
        if not isinstance(error.code, int | None):
            complain(str(error.code))
        reason = f"the plan ended itself with exit code {code} before it had a result{{where}}"
        return self._raised(error, reason, exit_code=(code & 0xFF) or 1)

    def _raised(self, error: BaseException, reason: str, *, exit_code: int = 1) -> Problem:
        return raised(error, reason, source=self._source, filename=self._filename, exit_code=exit_code)


def file_name(name: str) -> str:
    """Return what the file of a plan is called in tracebacks."""
    stem = "".join(letter if letter.isalnum() or letter in "._- " else "_" for letter in name.removesuffix(".py"))
    return f"{stem.strip('. ')[:80] or 'plan'}.py"


def _missing(error: ModuleNotFoundError) -> str | None:
    """Say which package is missing and whose choice that is; None when the error does not name one."""
    name = error.name if isinstance(error.name, str) else ""
    if not all(part.isidentifier() for part in name.split(".")) or len(name) > 100:
        return None
    if name.partition(".")[0] == "fedmon":
        return f"the plan imports {name}{{where}}: of fedmon, only TrainingPlan is there while a plan runs"
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"the plan needs {name}{{where}}, which the Python {version} of this node has not: which Python plans run on, "
        "and so which packages they see, is the owner's choice, by `[runs] python`"
    )


def _without_dataset(error: AttributeError) -> str:
    """Say that there is no dataset where that is what the plan stumbled over."""
    is_it = error.obj is None and hasattr(Dataset, str(error.name))
    return "; this job has no dataset" if is_it else ""


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _prepare_streams() -> None:
    """Let every line that the plan prints leave at once, and none fail for its characters."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # at the start they are files


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]  # None, or what a plan put there, fails as the rest does
        except Exception:  # noqa: BLE001, S112 - what it cannot print any more is lost, and nothing else
            continue
