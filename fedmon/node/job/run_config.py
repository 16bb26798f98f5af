"""What a verbose run writes down of itself: ``configs/HOST_run_config.yml``, with perfmon's keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmon.common.errors import StorageError
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.layout import FILE_MODE, JobFolder
from fedmon.node.job.options import LABELS, JobOptions


def run_config(
    options: JobOptions,
    identity: JobIdentity,
    folder: JobFolder,
    *,
    host: str,
    recording: Path,
    pids: Sequence[int],
    gpus: int,
    has_perf: bool,
) -> dict[str, Any]:
    """Return a run's configuration; keys and their order are perfmon's, and what only fedmon has comes last."""
    nodes = identity.nodes or (identity.host,)
    return {
        "save_dir": str(folder.path),
        "prefix": options.prefix,
        "launcher": options.launcher,
        "sampling_freq": options.sampling_freq,
        "check_point": options.check_point,
        "gen_report": options.gen_report,
        "export": list(options.export),
        **{name: options.labels.get(name) for name in LABELS},
        "verbose": options.verbose,
        "host_name": identity.host,
        "node_name": host,
        "master_node": nodes[0],
        "num_nodes": len(nodes),
        "user": identity.user,
        "scheduler": identity.scheduler,
        "job_id": identity.job_id,
        "script_name": "fedmon job",
        "metrics": [
            "meta_data",
            "cpu_metrics",
            *(["perf_metrics"] if has_perf else []),
            *(["nv_gpu_metrics"] if gpus else []),
        ],
        "num_nvidia_gpus": gpus,
        "pid": list(pids),
        "ipc_file": str(folder.ipc),
        "data_dir": str(folder.metrics),
        "plot_dir": str(folder.plots),
        "report_path": str(folder.report_pdf),
        "temp_path": str(recording),
        "perf_event_file": None,
        "db_lock_file": None,
        "command": options.told_command,
        "broker": None if options.broker is None else options.broker.url,
    }


def write_run_config(path: Path, document: dict[str, Any]) -> None:
    """Write the configuration, whole or not at all. Raises StorageError."""
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        JobFolder.make_folder(path.parent)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE), "w") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
