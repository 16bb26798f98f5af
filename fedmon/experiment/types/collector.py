"""`fedmon::Collector`: puts a trace of what it is connected to into the folder of the run."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path, PurePosixPath

from fedmon.common.errors import StorageError
from fedmon.experiment.attributes import Attribute, Flags, Types
from fedmon.experiment.errors import TraceNotReadableError, told
from fedmon.experiment.resource import Experiment, ResourceManager, clsinit_copy
from fedmon.experiment.traces import TraceAttr
from fedmon.experiment.types import job_files
from fedmon.experiment.types.errors import MissingPartError
from fedmon.experiment.types.linked import LinkedResource
from fedmon.experiment.types.values import CheckedAttribute, file_name, folder_path, inner_path, own


@clsinit_copy
class Collector(LinkedResource):
    """At its release writes ``run_dir[/subDir]/guid.(rename or traceName)`` for each resource that it is connected to.

    With ``storeDir``, of NEPI 3, it writes to ``storeDir[/run_id][/subDir]``, with the id where ``useRunId`` is true.
    It waits for nobody: what a resource writes until its own release is collected once more then. Of a trace that is
    not there a file ``....missing`` says why, and ``missing`` lists it.
    """

    _rtype = "fedmon::Collector"
    _help = "Collects a trace of every resource that it is connected to into the folder of the run, at its release."
    _passes = ()
    _required_attributes = ("traceName",)
    _measured_by = ()

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self._collected: dict[int, str] = {}
        self._missing: dict[int, str] = {}
        self._given_back: set[int] = set()

    @classmethod
    def _register_attributes(cls) -> None:
        for attribute in (
            CheckedAttribute(
                "traceName", "The trace that is collected.", inner_path, "the name of a trace", flags=Flags.Design
            ),
            CheckedAttribute(
                "subDir", "A folder within that of the run.", inner_path, "the name of a folder", flags=Flags.Design
            ),
            CheckedAttribute(
                "rename", "The name of the files, after the guid.", file_name, "the name of a file", flags=Flags.Design
            ),
            CheckedAttribute(
                "storeDir",
                "The folder that is collected into; null: that of the run.",
                folder_path,
                "the path of a folder",
                flags=Flags.Design,
            ),
            Attribute(
                "useRunId",
                "Whether to collect into a folder within storeDir that is named after the run.",
                type=Types.Bool,
                default=False,
                flags=Flags.Design,
            ),
            own(
                "collected", "What was collected: files within the folder of the run, or else their paths, with commas."
            ),
            own("missing", "What was not there, and why."),
        ):
            cls._register_attribute(attribute)

    @property
    def store_path(self) -> str:
        """The folder that it collects into."""
        folder = Path(self.get("storeDir") or self.ec.run_dir).expanduser().absolute()
        if self.get("storeDir") and self.get("useRunId"):
            folder /= self.controller.run_id
        return str(folder / (self.get("subDir") or ""))

    def do_deploy(self) -> None:
        """Refuse what could never collect anything."""
        if not self.get("traceName"):
            raise MissingPartError(self.name, "traceName", "set it to the name of a trace, such as stdout")
        if self.get("storeDir"):
            self.fixed_path("storeDir")
            _make(Path(self.store_path))
        super().do_deploy()

    def neighbour_releases(self, other: ResourceManager) -> None:
        """Collect what another may give back; those of ours are collected once more when nothing of them runs."""
        with self.lock:
            self._given_back.add(other.guid)
            self.collect(other)

    def do_release(self) -> None:
        """Collect from all."""
        for guid in sorted(self.connections):
            with self.lock, contextlib.suppress(KeyError):  # it was taken out just now
                if guid not in self._given_back:
                    self.collect(self.ec.get_resource(guid))
        super().do_release()

    def collect(self, source: ResourceManager) -> None:
        """Write the trace of one resource, over what was collected of it before."""
        name = self.get("traceName")
        if not name:
            return
        target = Path(self.store_path) / f"{source.guid}.{self.get('rename') or PurePosixPath(name).name}"
        mark = target.with_name(f"{target.name}.missing")
        try:
            _copy(source, name, target)
        except Exception as error:  # noqa: BLE001 - a type's own code; the other traces are collected all the same
            reason = told(error)
            if self._missing.get(source.guid) != reason:
                self.warning(f"trace {name} of {source.name} is missing: {reason}")
            with contextlib.suppress(StorageError):
                job_files.write(mark, f"trace {name} of {source.name}: {reason}\n".encode("utf-8", "replace"))
            self._note(source.guid, missing=reason)
            return
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
        is_inside = target.is_relative_to(self.ec.run_dir)
        self._note(source.guid, collected=str(target.relative_to(self.ec.run_dir) if is_inside else target))

    def _note(self, guid: int, *, collected: str = "", missing: str = "") -> None:
        with self.lock:
            for found in (self._collected, self._missing):
                found.pop(guid, None)
            if missing:
                self._missing[guid] = missing
            else:
                self._collected[guid] = collected
            name = self.get("traceName")
            lacking = "; ".join(f"{each}.{name}: {reason}" for each, reason in sorted(self._missing.items()))
            self._note_own("missing", lacking or None)
            self._note_own("collected", ", ".join(text for _, text in sorted(self._collected.items())) or None)


@clsinit_copy
class NepiCollector(Collector):
    """The Collector under the name that NEPI's scripts and files have for it."""

    _rtype = "Collector"


def _copy(source: ResourceManager, name: str, target: Path) -> None:
    """Copy the file of a trace; of a type that has none in this run, what it says the trace is."""
    path = _file_of(source, name)
    if path is not None:
        _make(target.parent)
        try:
            shutil.copyfile(path, target)
        except OSError as error:
            raise StorageError(f"cannot copy {path} to {target}: {error.strerror or error}") from error
        return
    found: object = source.trace(name, TraceAttr.ALL)
    if not isinstance(found, str | bytes):
        raise TraceNotReadableError("it was not written")
    job_files.write(target, found if isinstance(found, bytes) else found.encode("utf-8", "replace"))


def _file_of(source: ResourceManager, name: str) -> Path | None:
    """Return the file of a trace in the run's folder; null where there is none.

    Types of NEPI's scripts name files of the machine that they stand for, one of which may be here, too, by chance.
    """
    try:
        found: object = source.trace(name, TraceAttr.PATH)
        path = Path(found).resolve() if isinstance(found, str | Path) else None
    except Exception:  # noqa: BLE001 - a type's own code, which may know of texts alone
        return None
    is_ours = path is not None and path.is_relative_to(Path(source.ec.run_dir).resolve()) and path.is_file()
    return path if is_ours else None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"cannot make the folder {folder}: {error.strerror or error}") from error
