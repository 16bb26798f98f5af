"""The identity of a job, from the environment of its scheduler."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import RESERVED_IDS
from fedmon.common.log import escape_control
from fedmon.node.job.layout import id_name

_WHOLE_MACHINE = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Numbers as the driver counts. CUDA's begin at 0 for each job where its cgroup hides the other GPUs."""
_NONE_GIVEN = ("", "-1", "NoDevFiles", "none", "void")

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_EXPRESSION = re.compile(r"(?:[^,\[\]]+|\[[^\[\]]*\])+")

T = TypeVar("T")
SchedulerName = Literal["slurm", "pbs", "oar", "none"]
ID_VARIABLES: Mapping[SchedulerName, str] = {
    "slurm": "SLURM_JOB_ID",  # the first, because its wrappers of PBS set both
    "pbs": "PBS_JOBID",
    "oar": "OAR_JOB_ID",
    "none": "FEDMON_JOB_ID",
}

_MAX_TEXT = 256
_NUMBER = re.compile(r"[0-9]{1,18}")
_OF_SERVER = re.compile(r"[0-9]+(\[[0-9]*\])?\.[A-Za-z].*")
_PBS_ID = re.compile(r"([0-9]{1,18})(?:\[([0-9]{0,10})\])?(\.[A-Za-z0-9._-]{1,255})?")
JOB_IDS: Mapping[SchedulerName, tuple[re.Pattern[str], str]] = {
    "slurm": (re.compile(r"[0-9]{1,18}([_+][0-9]{1,10})?"), "4711, or 4711_3 of an array"),
    "pbs": (_PBS_ID, "4711.server, or 4711[3].server of an array"),
    "oar": (_NUMBER, "4711"),
}
"""The ids that each scheduler writes, and examples."""


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a job; None for unknown values.

    ``job_id`` is as its scheduler writes it, ``key`` names streams and files, and ``raw_id`` is the id for the
    scheduler's commands, None if that scheduler cannot have given it. ``host`` is the scheduler's name for this host,
    and ``step_nodes`` are the nodes of this process's SLURM step. SLURM lets it run from ``starts_at`` to
    ``ends_at``, in Unix seconds, and a requeued job at other times.
    ``memory_limit_bytes``, ``cpus`` and ``gpus`` are of this host. ``inside`` tells whether this process runs in the
    job, or asks about it from outside.
    """

    scheduler: SchedulerName
    job_id: str
    key: str
    host: str
    raw_id: str | None = None
    cluster: str | None = None
    step: str | None = None
    array_job_id: str | None = None
    array_index: int | None = None
    name: str | None = None
    user: str | None = None
    nodes: tuple[str, ...] | None = None
    step_nodes: tuple[str, ...] | None = None
    time_limit_s: float | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    cpus: int | None = None
    memory_limit_bytes: int | None = None
    gpus: tuple[str, ...] | None = None
    inside: bool = True


def identify(environ: Mapping[str, str], *, hostname: str, pid: int) -> JobIdentity:
    """Return the job of an environment; without a scheduler it is named after host and process.

    Values that cannot be read are None, and text is cut at 256 printable characters.
    """
    names = (name for name, variable in ID_VARIABLES.items() if environ.get(variable))
    scheduler: SchedulerName = next(names, "none")
    job_id = environ.get(ID_VARIABLES[scheduler]) or f"{hostname.partition('.')[0] or 'host'}-{pid}"
    read = functools.partial(_first, environ)
    readers: Mapping[str, Callable[..., dict[str, Any]]] = {"slurm": _slurm, "pbs": _pbs, "oar": _oar}
    known = readers[scheduler](read) if scheduler in readers else {}
    nodes, node_name = known.get("nodes"), environ.get("SLURMD_NODENAME", "")
    if scheduler == "slurm" and nodes and node_name in nodes:
        hostname = node_name  # several slurmd may run on one machine, each as another node
    if scheduler == "pbs":
        known["array_job_id"], known["array_index"] = _pbs_array(job_id)
        known["cluster"] = _text(job_id.partition(".")[2]) or known["cluster"]
    return JobIdentity(
        scheduler=scheduler,
        job_id=_text(job_id),
        key=job_key(job_id),
        host=own_name(hostname, nodes),
        raw_id=_raw_id(scheduler, job_id),
        gpus=given_gpus(environ),
        **{"user": read(_text, "USER", "LOGNAME"), **known},
    )


def named(job_id: str, scheduler: SchedulerName, *, hostname: str) -> JobIdentity:
    """Return the identity of a job for a question from outside, by its id.

    Raises InvalidInputError for an id that the scheduler cannot have given.
    """
    pattern, example = JOB_IDS[scheduler]
    if not pattern.fullmatch(job_id):
        raise InvalidInputError(f"{_text(job_id)!r} is not a job id of {scheduler}; an example is {example}")
    array, index = _pbs_array(job_id) if scheduler == "pbs" else (None, None)
    if scheduler == "slurm" and "_" in job_id:
        array, _, number = job_id.partition("_")
        index = int(number)
    return JobIdentity(
        scheduler=scheduler,
        job_id=job_id,
        key=job_key(job_id),
        host=hostname,
        raw_id=_raw_id(scheduler, job_id),
        array_job_id=array,
        array_index=index,
        inside=False,
    )


def _slurm(read: Callable[..., Any]) -> dict[str, Any]:
    begin, end, cpus, megabytes, per_cpu = (
        read(int, f"SLURM_{name}")
        for name in ("JOB_START_TIME", "JOB_END_TIME", "CPUS_ON_NODE", "MEM_PER_NODE", "MEM_PER_CPU")
    )
    if megabytes is None and cpus and per_cpu:
        megabytes = cpus * per_cpu
    return {
        "nodes": read(expand, "SLURM_JOB_NODELIST"),
        "step_nodes": read(expand, "SLURM_STEP_NODELIST"),
        "cluster": read(_text, "SLURM_CLUSTER_NAME"),
        "step": read(_text, "SLURM_STEP_ID") or ("batch" if read(_text, "ENVIRONMENT") == "BATCH" else None),
        "array_job_id": read(_text, "SLURM_ARRAY_JOB_ID"),
        "array_index": read(int, "SLURM_ARRAY_TASK_ID"),
        "name": read(_text, "SLURM_JOB_NAME"),
        "user": read(_text, "SLURM_JOB_USER", "USER", "LOGNAME"),
        "time_limit_s": float(end - begin) if begin and end and end > begin else None,
        "starts_at": float(begin) if begin else None,
        "ends_at": float(end) if end else None,
        "cpus": cpus or None,
        "memory_limit_bytes": megabytes * 1_048_576 if megabytes else None,
    }


def _pbs(read: Callable[..., Any]) -> dict[str, Any]:
    return {
        "nodes": read(from_file, "PBS_NODEFILE_LOCAL", "PBS_NODEFILE"),
        "cluster": read(_text, "PBS_SERVER"),
        "name": read(_text, "PBS_JOBNAME"),
        "user": read(_text, "PBS_O_LOGNAME", "USER", "LOGNAME"),
        "time_limit_s": read(_seconds, "PBS_WALLTIME"),
        "cpus": read(int, "PBS_NUM_PPN", "NCPUS") or None,  # Torque's, PBS Pro's
    }


def _oar(read: Callable[..., Any]) -> dict[str, Any]:
    return {
        "nodes": read(from_file, "OAR_NODEFILE"),
        "array_job_id": read(_text, "OAR_ARRAY_ID"),
        "array_index": read(int, "OAR_ARRAY_INDEX"),
        "name": read(_text, "OAR_JOB_NAME"),
        "user": read(_text, "OAR_USER", "USER", "LOGNAME"),
        "time_limit_s": read(_seconds, "OAR_JOB_WALLTIME_SECONDS"),
    }


def _first(environ: Mapping[str, str], parse: Callable[[str], T], *names: str) -> T | None:
    """Return the value of the first of these variables that can be read."""
    for text in filter(None, map(environ.get, names)):
        with contextlib.suppress(OSError, ValueError):
            return parse(text)
    return None


def _raw_id(scheduler: SchedulerName, job_id: str) -> str | None:
    return job_id if (_PBS_ID if scheduler == "pbs" else _NUMBER).fullmatch(job_id) else None


def _pbs_array(job_id: str) -> tuple[str | None, int | None]:
    found = _PBS_ID.fullmatch(job_id)
    if found is None or not found[2]:
        return None, None
    return f"{found[1]}[]{found[3] or ''}", int(found[2])


def _text(text: str) -> str:
    return escape_control(text)[:_MAX_TEXT]


def _seconds(text: str) -> float | None:
    return float(int(text)) or None


def given_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs by the driver's number or by UUID; None if no variable names them.

    Sources: SLURM's manual of srun, "output environment variables"; CUDA programming guide, "CUDA_VISIBLE_DEVICES".
    """
    texts = (environ.get(name) for name in (*_WHOLE_MACHINE, "CUDA_VISIBLE_DEVICES"))
    text = next((text.strip() for text in texts if text is not None), None)
    if text is None or text in _NONE_GIVEN:
        return None if text is None else ()
    words = [word.strip() for word in text.split(",")]
    with contextlib.suppress(ValueError):
        return tuple(words if words[0].startswith(("GPU-", "MIG-")) else _numbers(text))
    return None


def job_key(job_id: str) -> str:
    """Return 1 to 64 letters, digits, ``_`` and ``-`` for a job id: ``12[3].server`` gives ``12_3-server``."""
    if _OF_SERVER.fullmatch(job_id):
        job_id = job_id.replace("].", ".").replace("[", "_").replace(".", "-")
    key = id_name(job_id)
    return f"{key}-" if key in RESERVED_IDS else key


# --- lists of hosts --------------------------------------------------------------------------------------------------


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a SLURM list such as ``n[1-3,07-09],gpu1`` in its order. Raises ValueError.

    A number keeps the width of the first one in its range. Several brackets in a name give every combination.
    Source: scontrol(1), "show hostnames".
    """
    found: list[str] = []
    for expression in _EXPRESSION.findall(text):
        pieces = [[plain] if plain else _numbers(inside) for inside, plain in _PIECE.findall(expression)]
        found += map("".join, itertools.product(*pieces))
    return _hosts(found)


def from_file(path: str) -> tuple[str, ...]:
    """Return the hosts of a file with a host a line, each once, in its order. Raises OSError and ValueError.

    PBS and OAR write a line for each CPU.
    """
    return _hosts(Path(path).read_text().split())


def _hosts(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(names))
    if not found or not all(map(_HOST.fullmatch, found)):
        raise ValueError("no list of hosts")
    return found


def own_name(hostname: str, nodes: Sequence[str] | None) -> str:
    """Return the name that a scheduler's list has for this host; the given one if it has none."""
    if not nodes or hostname in nodes:
        return hostname
    short = hostname.partition(".")[0]
    same = [node for node in nodes if node.partition(".")[0] == short]
    return same[0] if len(same) == 1 else hostname


def _numbers(text: str) -> list[str]:
    """Return the numbers of ``1-3,07``, each in the width of its range's first. Raises ValueError."""
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return found
