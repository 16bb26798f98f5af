"""`fedmon::Collector`: copies a trace of each resource that it is connected to into the folder of the run."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path, PurePosixPath

from fedmon.common.errors import StorageError
from fedmon.common.files import replacing, storage_errors, write_whole
from fedmon.experiment.attributes import Attribute, Flags, TraceAttr, Types
from fedmon.experiment.errors import TraceNotReadableError, told
from fedmon.experiment.resource import Experiment, ResourceManager
from fedmon.experiment.states import ResourceState
from fedmon.experiment.types.values import CheckedAttribute, file_name, inner_path, own, path_text


class Collector(ResourceManager):
    """Writes ``run_dir[/subDir]/guid.(rename or traceName)`` for each resource that it is connected to.

    It reads at its own release, and before the release of a resource whose trace may need it. The attribute ``missing``
    says why a trace cannot be read. With ``storeDir`` it writes to ``storeDir[/run_id][/subDir]``, with the id if
    ``useRunId`` is true.
    """

    _platform = "fedmon"
    _rtype = "fedmon::Collector"
    _help = "Collects a trace of every resource that it is connected to into the folder of the run, at its release."
    _required_attributes = ("traceName",)

    own_attributes = (
        CheckedAttribute("traceName", "The trace that is collected.", inner_path, "the name of a trace",
                         flags=Flags.Design),
        CheckedAttribute("subDir", "A folder within that of the run.", inner_path, "the name of a folder",
                         flags=Flags.Design),
        CheckedAttribute("rename", "The name of the files, after the guid.", file_name, "the name of a file",
                         flags=Flags.Design),
        CheckedAttribute("storeDir", "The folder that it writes to; None: that of the run.", path_text,
                         "the path of a folder", flags=Flags.Design, is_path=True),
        Attribute("useRunId", "Whether to write to a folder within storeDir that is named after the run.", Types.Bool,
                  Flags.Design, default=False),
        own("collected", "The files that it wrote, separated by commas; those of the run relative to its folder."),
        own("missing", "Which traces could not be read, and why."),
    )  # fmt: skip

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._reading = threading.RLock()
        self._read_last: set[int] = set()
        self._collected: dict[int, str] = {}
        self._missing: dict[int, str] = {}

    @property
    def store_path(self) -> str:
        """The folder that it writes to."""
        run = Path(self.ec.run_dir)
        folder = Path(self.get("storeDir") or run)
        if self.get("storeDir") and self.get("useRunId"):
            folder /= run.name
        return str(folder / (self.get("subDir") or ""))

    def do_deploy(self) -> None:
        """Refuse to be READY without a folder for the traces."""
        if self.get("storeDir"):
            with storage_errors(Path(self.store_path)):
                Path(self.store_path).mkdir(parents=True, exist_ok=True, mode=0o700)
        super().do_deploy()

    def do_release(self) -> None:
        """Read all traces."""
        for each in self.get_connected():
            self.collect(each)
        super().do_release()

    def neighbour_releases(self, other: ResourceManager) -> None:
        """Read the trace of a resource for the last time."""
        self.collect(other, is_last=True)

    def collect(self, source: ResourceManager, *, is_last: bool = False) -> None:
        """Write the trace of one resource over an earlier copy; after the last time nothing is read."""
        name = self.get("traceName")
        if not name:
            return
        target = Path(self.store_path) / f"{source.guid}.{self.get('rename') or PurePosixPath(name).name}"
        with self._reading:
            if not is_last and source.guid in self._read_last:
                return
            self._read_last.update([source.guid] if is_last else [])
            try:
                if is_last or source.state is not ResourceState.RELEASED or not target.exists():
                    _copy(source, name, target)  # else a process that died has read it
            except Exception as error:  # noqa: BLE001 - a type's own code; the other traces are collected all the same
                reason = told(error)
                if self._missing.get(source.guid) != reason and source.start_time is not None:
                    self.warning(f"trace {name} of {source.name} is missing: {reason}")
                if source.guid not in self._collected:  # an earlier copy stays
                    self._missing[source.guid] = reason
            else:
                self._missing.pop(source.guid, None)
                is_inside = target.is_relative_to(self.ec.run_dir)
                self._collected[source.guid] = str(target.relative_to(self.ec.run_dir) if is_inside else target)
            with contextlib.suppress(StorageError):  # the journal is full, and the experiment FAILED by that
                missing = "; ".join(f"{guid}.{name}: {reason}" for guid, reason in sorted(self._missing.items()))
                self._set_own("missing", missing or None)
                self._set_own("collected", ", ".join(text for _, text in sorted(self._collected.items())) or None)


class NepiCollector(Collector):
    """The Collector under its name in NEPI's scripts and files."""

    _rtype = "Collector"


def _copy(source: ResourceManager, name: str, target: Path) -> None:
    """Copy the file of a trace; if it has none in this run, write the trace that the type returns."""
    path = _file_of(source, name)
    if path is not None:
        with replacing(target, folder_mode=0o700) as new:
            shutil.copyfile(path, new)
        return
    found: object = source.trace(name, TraceAttr.ALL)
    if not isinstance(found, str | bytes):
        raise TraceNotReadableError("it was not written")
    write_whole(target, found if isinstance(found, bytes) else found.encode("utf-8", "replace"), folder_mode=0o700)


def _file_of(source: ResourceManager, name: str) -> Path | None:
    """Return the file of a trace within the run's folder; None if there is none.

    Types of NEPI's scripts return paths on the machine that they stand for; such a path may exist here by chance.
    """
    try:
        found: object = source.trace(name, TraceAttr.PATH)
        path = Path(found).resolve() if isinstance(found, str | Path) else None
    except Exception:  # noqa: BLE001 - a type's own code, which may not know of paths
        return None
    is_ours = path is not None and path.is_relative_to(Path(source.ec.run_dir).resolve()) and path.is_file()
    return path if is_ours else None
