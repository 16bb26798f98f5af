"""The settings of runs: how approved plans are confined, and what they may take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SandboxLevel = Literal["bubblewrap", "landlock", "limits"]
_GIB = 2**30
_MIB = 2**20


class RunsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of an approved plan may use. That a plan needs approval is no setting."""

    enabled: Annotated[bool, Meta(description="Run plans that the owner approved, for researchers who are obeyed.")] = (
        True
    )
    sandbox: Annotated[
        SandboxLevel,
        Meta(
            description="The weakest confinement in which a plan may run. bubblewrap: namespaces of its own; landlock: "
            "no_new_privs, limits, seccomp and Landlock; limits: as landlock, on kernels that have no Landlock. "
            "The strongest that this machine has is used; below this one nothing runs."
        ),
    ] = "landlock"
    python: Annotated[
        Path | None,
        Meta(description="The Python that plans run on; its packages are what they can import. When absent: our own."),
    ] = None
    devices: Annotated[
        tuple[str, ...], Meta(description='Device files that plans may use, such as "/dev/nvidia0".')
    ] = ()
    max_jobs: Annotated[int, Meta(description="Jobs that run at a time; more are refused.", ge=1, le=256)] = 2
    max_cpu_s: Annotated[
        float, Meta(description="CPU time of one job, all of its processes together, in seconds.", ge=1, le=31_536_000)
    ] = 3600.0
    max_wall_s: Annotated[float, Meta(description="How long one job may last, in seconds.", ge=1, le=31_536_000)] = (
        3600.0
    )
    max_memory_bytes: Annotated[int, Meta(description="Memory of one job, in bytes.", ge=64 * _MIB, le=2**50)] = (
        4 * _GIB
    )
    max_processes: Annotated[
        int, Meta(description="Processes and threads of one job at a time.", ge=1, le=1_000_000)
    ] = 256
    max_tmp_bytes: Annotated[
        int, Meta(description="What one job may have in files of its own, in bytes.", ge=_MIB, le=2**50)
    ] = _GIB
    max_output_bytes: Annotated[
        int, Meta(description="The largest result that one job may return, in bytes.", ge=1024, le=64 * _GIB)
    ] = 256 * _MIB
    max_input_bytes: Annotated[
        int, Meta(description="The largest inputs that a researcher may send to one job, in bytes.", ge=0, le=64 * _GIB)
    ] = 256 * _MIB
    trace_bytes: Annotated[
        int, Meta(description="What is kept of each of stdout and stderr of a job, in bytes.", ge=4096, le=_GIB)
    ] = _MIB
    keep_s: Annotated[
        float, Meta(description="How long traces and results of a job that is over are kept, in seconds.", ge=60)
    ] = 2_592_000.0
