"""The process of a plan: from the bytes of its source to its result or its failure."""

from __future__ import annotations

# `os` takes several milliseconds to import where nothing has done so yet, and these are the same functions.
import posix
import sys

from fedmon.common.training_plan import TrainingPlan
from fedmon.plan import frames
from fedmon.plan.context import PlanContext, shortened
from fedmon.plan.dataset import PlanDataset
from fedmon.plan.parcels import InvalidValuesError, Packed, TooLargeError, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType
    from typing import Any, NoReturn

JOB, SOURCE, INPUTS, CHANNEL = 3, 4, 5, 6
"""The descriptors of a plan's process: three to read, and one to write frames into."""
MODULE = "fedmon_plan"
"""The module name of a plan while it runs."""
_MAX_ENTRIES = 40
"""Calls in a traceback, the innermost: each may have a line of up to a megabyte."""


class PlanProblem(Exception):  # noqa: N818 - it carries the description of an error
    """The run is over without a result; ``fields`` are those of the frame."""

    def __init__(
        self,
        reason: str,
        kind: str,
        *,
        state: str = frames.FAILED,
        message: str | None = None,
        traceback: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.fields = {
            "state": state,
            "reason": shortened(reason, frames.MAX_REASON_CHARACTERS),
            "type": shortened(kind, frames.MAX_TYPE_CHARACTERS),
            "message": None if message is None else shortened(message, frames.MAX_MESSAGE_CHARACTERS),
            "traceback": None if traceback is None else shortened(traceback, frames.MAX_TRACEBACK_CHARACTERS),
        }


def main(runtime: str) -> NoReturn:
    """Run the plan behind the descriptors, send its result or failure, and end the process.

    ``runtime`` is the folder of fedmon. The process ends right after the result, even if threads of the plan still run;
    its exit code is 0 only after a result.
    """
    channel = frames.FrameChannel(CHANNEL)
    code = 1
    try:
        channel.send(frames.BEGUN, {})
        channel.send_result(_result(runtime, channel))
        code = 0
    except frames.ChannelClosedError as error:
        _complain(str(error))
    except BaseException as error:  # noqa: BLE001 - the outermost caller
        kind = type(error).__name__
        # A plan can break this code, because both are one process.
        broken = f"the plan ended in a way that could not be looked into ({kind})"
        problem = error if isinstance(error, PlanProblem) else PlanProblem(broken, kind)
        _complain(problem.fields["traceback"] or problem.fields["reason"] or "")
        channel.send(frames.FAILURE, problem.fields)
    finally:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()  # type: ignore[union-attr]  # None, or an object of the plan, fails as the rest does
            except Exception:  # noqa: BLE001, S112 - only the rest of its output is lost
                continue
        posix._exit(code)  # noqa: SLF001 - this is its public name


def _result(runtime: str, channel: frames.FrameChannel) -> Packed:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # at the start they are files
    job = _read_job()
    name = job["name"].removesuffix(".py")
    stem = "".join(letter if letter.isalnum() or letter in "._- " else "_" for letter in name)
    filename = f"{stem.strip('. ')[:80] or 'plan'}.py"
    sys.path[:] = list(dict.fromkeys([*sys.path, runtime, *job["path"]]))
    sys.argv[:] = [filename]
    context = PlanContext(
        job_id=job["job_id"],
        node_id=job["node_id"],
        dataset=None if job.get("dataset") is None else PlanDataset(**job["dataset"]),
        arguments=job["arguments"],
        inputs=_inputs(job["inputs_format"]),
        channel=channel,
    )
    return _Plan(_read_all(SOURCE), filename).result(context, job["output_bytes"])


def _read_job() -> dict[str, Any]:
    """Return the job, a JSON object of the node."""
    text = _read_all(JOB).decode().strip()
    try:
        # The same function as json.loads: to import json takes 15 ms, a third of an empty plan. A Python without that
        # function uses json.
        from _json import make_scanner

        job: dict[str, Any] = make_scanner(_Rules)(text, 0)[0]  # type: ignore[arg-type]  # it takes all that has these fields
    except (ImportError, AttributeError, TypeError, StopIteration):
        import json

        job = json.loads(text)
    return job


class _Rules:
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _read_all(descriptor: int) -> bytes:
    """Return all bytes behind a descriptor, and close it."""
    with open(descriptor, "rb", buffering=0) as file:
        return file.readall()


def _inputs(inputs_format: str | None) -> dict[str, Any]:
    """Return the inputs; their arrays share the bytes, and are copied on write."""
    if inputs_format is None:
        return {}
    try:
        if inputs_format == "json":
            return unpack("json", _read_all(INPUTS))
        import mmap

        buffer = mmap.mmap(INPUTS, 0, access=mmap.ACCESS_COPY)
        posix.close(INPUTS)
        return unpack(inputs_format, buffer)
    except InvalidValuesError as error:
        raise PlanProblem(f"the inputs cannot be read: {error}", "InvalidValuesError") from None


class _Plan:
    """One plan, from the bytes of its source to its result; every step raises PlanProblem."""

    def __init__(self, source: bytes, filename: str) -> None:
        self._source, self._filename = source, filename

    def result(self, context: PlanContext, output_bytes: int) -> Packed:
        """Return the result of the plan, ready to be sent."""
        code = self._call(self._compiled, "the plan is no Python: {error}")
        defined = self._call(lambda: self._execute(code), "the plan raised {error} as it was loaded{where}")
        kind = self._call(lambda: _find(defined), "looking for the plan's class raised {error}{where}")
        plan = self._call(kind, f"{kind.__name__}() raised {{error}}{{where}}: a plan is made without arguments")
        if not self._call(lambda: _has_run(kind, plan), "looking for its run raised {error}{where}"):
            raise PlanProblem(f"the plan's class {_name(kind)} has no method run(self, context)", "NoPlanError")
        result = self._call(lambda: plan.run(context), "the plan raised {error}{where}")
        return self._pack(result, output_bytes)

    def _compiled(self) -> CodeType:
        # UTF-8, whatever encoding a comment declares: in another one, a comment for the owner could run as code.
        try:
            return compile(self._source.decode("utf-8-sig"), self._filename, "exec", dont_inherit=True)
        except SyntaxError as error:
            line = f" (line {error.lineno})" if error.lineno else ""
            raise self._raised(error, f"the plan is no Python: {error.msg}{line}") from None
        except UnicodeDecodeError as error:
            raise self._raised(error, f"the plan is no Python: it is not UTF-8 (byte {error.start})") from None

    def _execute(self, code: CodeType) -> dict[str, Any]:
        """Run the source as a module, and return its names."""
        module = type(sys)(MODULE)
        module.__file__ = self._filename
        module.__loader__ = _Source(self._source)  # type: ignore[assignment]  # linecache needs nothing else
        # Pickles for forked processes, and data classes, are looked up here.
        sys.modules[MODULE] = module
        exec(code, module.__dict__)  # noqa: S102 - the owner of this machine approved these very bytes
        return module.__dict__

    def _call(self, step: Callable[[], Any], reason: str) -> Any:
        """Run one step of the plan's code, which may raise anything."""
        try:
            return step()
        except (frames.ChannelClosedError, PlanProblem):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the plan and not this process
            raise self._raised(error, _missing(error) or reason) from None

    def _pack(self, result: Any, output_bytes: int) -> Packed:
        try:
            return pack(result, max_bytes=output_bytes)
        except TooLargeError as error:
            reason = f"the result has more than {error.max_bytes} bytes, the limit of this job"
            raise PlanProblem(reason, "TooLargeError", state=frames.OUTPUT_LIMIT) from None
        except InvalidValuesError as error:
            reason = f"run() returned {error}" if not hasattr(result, "items") else f"the result: {error}"
            raise PlanProblem(reason, "InvalidValuesError", state=frames.INVALID_RESULT) from None
        except Exception as error:  # noqa: BLE001 - a mapping of the plan's own may raise anything
            state = frames.FAILED if isinstance(error, MemoryError) else frames.INVALID_RESULT
            raise self._raised(error, "reading the result raised {error}{where}", state=state) from None

    def _raised(self, error: BaseException, reason: str, *, state: str = frames.FAILED) -> PlanProblem:
        """Return the problem for an error of the plan.

        Its text and traceback may hold data, so they are apart from the reason, which has its type and its line.
        """
        if isinstance(error, MemoryError | RecursionError):
            _forget_frames(error.__traceback__)
        trace, first, line = error.__traceback__, None, None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._filename:
                first, line = first or trace, trace.tb_lineno
            trace = trace.tb_next
        kind, message = _type_name(error), None
        try:
            message = str(error)
            import traceback

            # From the plan's first line on, as Python prints it.
            told = "".join(traceback.format_exception(type(error), error, first, limit=-_MAX_ENTRIES))
        except Exception as other:  # noqa: BLE001 - a plan may leave Python without files, memory or a sound error
            told = f"{kind} (no traceback: {type(other).__name__})"
        reason = reason.replace("{error}", kind).replace("{where}", f" (line {line})" if line else "")
        return PlanProblem(reason, kind, state=state, message=message, traceback=told)


class _Source:
    """A loader with the lines of the plan, which is in no file, for tracebacks and inspect."""

    def __init__(self, source: bytes) -> None:
        self._source = source

    def get_source(self, _name: str) -> str:
        """Return the text of the module."""
        return self._source.decode("utf-8-sig", "replace")


def _find(defined: dict[str, Any]) -> type[TrainingPlan]:
    """Return the module's only class that derives from TrainingPlan and has no subclass there.

    Imported classes do not count.
    """
    classes = {id(value): value for value in defined.values() if isinstance(value, type)}.values()
    own = [kind for kind in classes if getattr(kind, "__module__", None) == MODULE]
    plans = [kind for kind in own if issubclass(kind, TrainingPlan)]
    last = [kind for kind in plans if not any(kind in other.__mro__[1:] for other in plans)]
    if len(last) != 1:
        found = ", ".join(_name(kind) for kind in last) or "none"
        reason = f"the plan needs one class that derives from fedmon.TrainingPlan, and has {found}"
        raise PlanProblem(reason, "NoPlanError")
    return last[0]


def _has_run(kind: type[TrainingPlan], plan: object) -> bool:
    return kind.run is not TrainingPlan.run and callable(getattr(plan, "run", None))


def _name(kind: type) -> str:
    return ascii(kind.__name__)[1:-1]


def _missing(error: BaseException) -> str | None:
    """Return the missing package and who can add it; None if the error does not name one."""
    name = error.name if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str) else ""
    if not all(part.isidentifier() for part in name.split(".")) or len(name) > 100:
        return None
    if name.partition(".")[0] == "fedmon":
        return f"the plan imports {name}{{where}}: of fedmon, only TrainingPlan is available to a plan"
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"the plan needs {name}{{where}}, which the Python {version} of this node lacks: the Python of plans, and so "
        "their packages, is the owner's choice, by `[runs] python`"
    )


def _type_name(error: BaseException) -> str:
    """Return the name of an error's class, with its module unless it is Python's, the plan's or ours."""
    kind = type(error)
    module = str(getattr(kind, "__module__", MODULE))
    is_near = module in ("builtins", MODULE) or module.startswith("fedmon.")
    return ascii(kind.__qualname__ if is_near else f"{module}.{kind.__qualname__}")[1:-1]


def _forget_frames(trace: TracebackType | None) -> None:
    """Release the variables of the plan's functions, because memory is short."""
    while trace is not None:
        try:  # noqa: SIM105 - contextlib would have to be imported, and there is no memory
            trace.tb_frame.clear()
        except RuntimeError:  # it still runs
            pass
        trace = trace.tb_next


def _complain(text: str) -> None:
    """Write a text to the process's first stderr, whatever the plan did with its own."""
    try:
        sys.__stderr__.write(f"{text.rstrip()}\n")  # type: ignore[union-attr]  # None fails as a closed one does
    except Exception:  # noqa: BLE001 - no other way to report it is left
        return
