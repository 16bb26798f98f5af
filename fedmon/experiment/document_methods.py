"""The methods of a controller about the experiment as a whole: saved, planned, explained and drawn."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidInputError
from fedmon.experiment import drawing, explaining, planning, topology_document
from fedmon.experiment.delegate import Delegate
from fedmon.experiment.describing import description_of, facts_of
from fedmon.experiment.document import Description, SFormats, to_toml, to_xml, write
from fedmon.experiment.failure import FailureManager
from fedmon.experiment.failure_policies import policy_of
from fedmon.experiment.run_folder import RunFolder, run_id_of
from fedmon.experiment.topology import NetGraph


class DocumentMethods(Delegate):
    """An experiment as a document, a plan and a picture."""

    folder: RunFolder
    fm: FailureManager
    nthreads: int
    persist: bool
    _netgraph: NetGraph | None

    @property
    def netgraph(self) -> NetGraph | None:
        """The topology that the experiment was made from; null where it was made from none."""
        return self._netgraph

    def describe(self) -> Description:
        """Return the experiment as it stands."""
        return description_of(
            self._book,
            self._engine.state,
            self.folder,
            nthreads=self.nthreads,
            persist=self.persist,
            topology=None if self._netgraph is None else topology_document.describe(self._netgraph),
            failures=policy_of(self.fm, self._engine.state.resources),
        )

    def serialize(self, format: str = SFormats.XML) -> str:  # noqa: A002 - NEPI's name
        """Return the experiment as the text of a document. Raises InvalidInputError for another format."""
        return to_xml(self.describe()) if _checked(format) is SFormats.XML else to_toml(self.describe())

    def save(self, dirpath: str | Path | None = None, format: str = SFormats.XML) -> str:  # noqa: A002 - NEPI's name
        """Write the experiment into a folder, the run's where it is null, and return the path of the file.

        Credentials are masked. Raises InvalidInputError for another format, and StorageError.
        """
        ending = _checked(format).value
        folder = self.folder.make() if dirpath is None else Path(dirpath)
        name = f"{self.folder.exp_id}_{run_id_of(utc_now())[:14]}"
        return str(write(self.describe(), _free(folder, name, ending)))

    def plan(self) -> planning.Plan:
        """Return a dry run: what would happen in which order, and what never can.

        Resources of a federation ask nodes what stands in their way, which may take a moment; nothing is changed there.
        """
        state = self._engine.state
        return planning.plan(state, facts_of(self._book, state))

    def explain(self, guid: int) -> explaining.Explanation:
        """Return why a resource is as it is: whom it waits for, since when, and how long still."""
        resource = self._book.get(guid)
        found = explaining.explain(self._engine.state, resource.guid, self._engine.now())
        own = getattr(resource, "waits_for", "")
        return replace(found, reason=f"{found.reason}; it waits for {own}") if own else found

    def plot(
        self,
        dirpath: str | Path | None = None,
        format: str = drawing.PFormats.FIGURE,  # noqa: A002 - NEPI's name
        show: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
    ) -> str:
        """Draw the experiment, with states and conditions, into a folder, and return the path of the file."""
        folder = self.folder.make() if dirpath is None else Path(dirpath)
        picture = drawing.picture_of(self._engine.state, names=self._book.names)
        name = f"{self.folder.exp_id}_{self.folder.run_id}"
        return str(drawing.plot(picture, folder, name, format=format, show=show))


def _free(folder: Path, name: str, ending: str) -> Path:
    """Return a path that no file has: a second file of one second is another state, and leaves the first one."""
    path, number = folder / f"{name}.{ending}", 1
    while path.exists():
        number += 1
        path = folder / f"{name}_{number}.{ending}"
    return path


def _checked(format: str) -> SFormats:  # noqa: A002 - NEPI's name
    """Return a format of documents by its name. Raises InvalidInputError for another."""
    if format not in list(SFormats):
        raise InvalidInputError(f"no documents of the format {format!r}; one of: {', '.join(SFormats)}")
    return SFormats(format)
