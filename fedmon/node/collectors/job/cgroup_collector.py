"""What the kernel counts for a job's cgroup as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.files import KernelFile
from fedmon.node.collectors.job.cgroup import UNIFIED, JobCgroup
from fedmon.node.collectors.job.cgroup_files import ONLY_CGROUP, CgroupFile, Understand, cgroup_files
from fedmon.node.collectors.job.watched import Watched


class CgroupSources:
    """The files of a cgroup that can be read; which version gives each metric, and why none does."""

    def __init__(self, cgroup: JobCgroup, *, sys: Path) -> None:
        self.files: list[CgroupFile] = []
        self.methods: dict[str, str] = {}
        held: dict[str, Path] = {}
        reasons: dict[str, str] = {}
        for file in cgroup_files(cgroup, sys=sys):
            folder = file.path.parent
            wanted = [metric for metric in file.metrics if held.get(metric, folder) == folder]
            reason = _unusable(file)
            if wanted and reason is None:
                self.files.append(file)
                held.update(dict.fromkeys(wanted, folder))
            elif reason is not None:
                reasons.update({metric: reason for metric in wanted if metric not in reasons})
        unheld = f"{Why.UNSUPPORTED.value}: no controller of cgroup {cgroup.path} counts it"
        self.missing = {metric: reasons.get(metric, unheld) for metric in ONLY_CGROUP if metric not in held}
        unified = cgroup.folders.get(UNIFIED)
        self.methods = {metric: "cgroup-v2" if folder == unified else "cgroup-v1" for metric, folder in held.items()}


class CgroupCollector:
    """Reads the files of one lane of a job's cgroup; that of the fast lane also says what cannot be read at all."""

    def __init__(self, watched: Watched, sources: CgroupSources, *, lane: Lane) -> None:
        self.lane = lane
        self.name = "job-cgroup" if lane is Lane.FAST else "job-cgroup-detail"
        self._watched = watched
        self._missing = sources.missing if lane is Lane.FAST else {}
        self._metrics = [metric for file in sources.files if file.lane is lane for metric in file.metrics]
        self._sources: Sequence[tuple[KernelFile, Understand]] = [
            (KernelFile(file.path), file.understand) for file in sources.files if file.lane is lane
        ]
        self._gave: dict[KernelFile, tuple[str, ...]] = {}

    def collect(self, _now: Instant) -> Reading:
        """Read every file; what one of them gave before is None with a reason when it cannot be read."""
        if self._watched.is_over:
            return Reading({})
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for file, understand in self._sources:
            try:
                found = understand(file.read())
            except CollectorUnavailableError as error:
                reason = error.reason
            except (ValueError, IndexError) as error:
                reason = f"{Why.FAILED.value}: {file.path}: {error}"[:200]
            else:
                self._gave[file] = tuple(found)
                values.update(found)
                continue
            gave = self._gave.get(file, ())
            values.update(dict.fromkeys(gave))
            reasons.update(dict.fromkeys(gave, reason))
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say what this cgroup counts."""
        return {**dict.fromkeys(self._metrics), **self._missing}

    def close(self) -> None:
        """Close the files."""
        for file, _ in self._sources:
            file.close()


def _unusable(file: CgroupFile) -> str | None:
    source = KernelFile(file.path)
    try:
        text = source.read()
        file.understand(text)
    except CollectorUnavailableError as error:
        return error.reason
    except (ValueError, IndexError) as error:
        return f"{Why.FAILED.value}: {file.path}: {error}"[:200]
    finally:
        source.close()
    if file.mark not in text:
        return f"{Why.UNSUPPORTED.value}: {file.path} does not tell"
    return None
