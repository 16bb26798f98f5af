"""`ExperimentController`: the face of an experiment, with the methods of NEPI's; each hands on to who knows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedmon.experiment.attribute_methods import AttributeMethods
from fedmon.experiment.book import Book
from fedmon.experiment.describing import build
from fedmon.experiment.document import read
from fedmon.experiment.document.description import Description, Nid
from fedmon.experiment.document_methods import DocumentMethods
from fedmon.experiment.doing import Doing
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import InvalidPolicyError
from fedmon.experiment.events import Opened
from fedmon.experiment.failure import FailureManager
from fedmon.experiment.failure_policies import fresh_copy, keep_policy, manager_of, policy_left_in
from fedmon.experiment.federation_link import FederationLink
from fedmon.experiment.journal import NAME, Journal
from fedmon.experiment.life import Life
from fedmon.experiment.life_methods import LifeMethods
from fedmon.experiment.log_levels import set_levels
from fedmon.experiment.reconnecting import Left, left_in
from fedmon.experiment.resource_methods import ResourceMethods
from fedmon.experiment.run_folder import path_of, run_folder
from fedmon.experiment.situation import State
from fedmon.experiment.states import ECState, FailureLevel
from fedmon.experiment.tasks import Tasks
from fedmon.experiment.thread_number import threads_asked
from fedmon.experiment.told_methods import ToldMethods
from fedmon.experiment.topology_callbacks import call_back, topology_asked
from fedmon.experiment.topology_document import build as build_topology
from fedmon.experiment.wiring import Wiring

if TYPE_CHECKING:
    from fedmon.researcher.federation import Federation


class ExperimentController(ResourceMethods, AttributeMethods, LifeMethods, DocumentMethods, ToldMethods):
    """Runs an experiment: registers resources, deploys them as their conditions say, waits, and releases all.

    A context manager, which always releases. Every method is safe from any thread; none blocks but `wait_*`, `release`
    and `shutdown`. The run's files lie in ``local_dir/exp_id/run_id``; ``journal=False`` keeps none.
    Resources of a federation use the one given, or one that is opened from the settings when the first needs it and
    closed at the end.
    """

    def __init__(
        self,
        exp_id: str | None = None,
        local_dir: str | Path | None = None,
        persist: bool = False,  # noqa: FBT001, FBT002 - NEPI's signature
        fm: FailureManager | None = None,
        add_node_callback: Callable[[Any, Nid], object] | None = None,
        add_edge_callback: Callable[[Any, Nid, Nid], object] | None = None,
        *,
        federation: Federation | None = None,
        journal: bool = True,
        nthreads: int | None = None,
        left: Left | None = None,
        **netgraph: Any,
    ) -> None:
        """Begin a run, or, by ``left``, take one up again; see `reconnect`.

        Further keywords are those of `NetGraph`; the callbacks are called for each of its nodes and edges.
        """
        opened = None if left is None else left.opened
        self.folder = run_folder(exp_id, local_dir) if left is None else left.folder
        self.persist = bool(persist if opened is None else opened.persist)
        self.is_journaled = journal
        self.nthreads = threads_asked(nthreads if opened is None else opened.threads)
        self.logger = logging.getLogger(__name__)
        set_levels(os.environ)
        self.fm = FailureManager() if fm is None else fm
        if not isinstance(self.fm, FailureManager):
            raise InvalidPolicyError(f"fm is {fm!r:.80}, and no FailureManager: derive a class, and give an instance")
        self._netgraph = topology_asked(netgraph)
        is_own = type(self).inform_failure is not ExperimentController.inform_failure
        self._doing = Doing(self.fm, informed=self.inform_failure if is_own else None)
        kept = Journal(self.folder.make() / NAME) if journal and left is None else None
        left = Left(folder=self.folder, journal=kept) if left is None else left
        self._engine = Engine(self._doing, left.journal, state=left.state, after=left.until, threads=self.nthreads)
        self._book = Book(self, self._engine)
        self._wiring = Wiring(self._book, self._engine, conditions=left.conditions)
        self._tasks = Tasks(self._engine)
        self._link = FederationLink(federation)
        self._life = Life(
            self, self._book, self._engine, heed=self._doing.heed, at_release=self._keep, at_end=self._link.close
        )
        self._doing.begin(self._book, self._engine)
        try:
            self.fm.set_ec(self)
            if opened is None:
                self._engine.post(Opened(t=self._engine.now(), persist=self.persist, threads=self.nthreads))
            self._book.take_up(left.state, highest=left.highest_guid, names=left.names)
            if self._netgraph is not None:
                call_back(self, self._netgraph, add_node_callback, add_edge_callback)
        except BaseException:  # nobody else has it, to end it
            if left.state.resources:
                self._give_up()
            else:
                self.shutdown()
            raise

    def _give_up(self) -> None:
        """Let others have the run as it is: nothing is released."""
        self._engine.stop()
        self._engine.close(timeout_s=0.0)
        self._link.close()

    @classmethod
    def reconnect(
        cls,
        run_dir: str | Path,
        *,
        fm: FailureManager | None = None,
        federation: Federation | None = None,
        attributes: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Self:
        """Take up again the run in a folder whose process died: nothing is done twice, and what goes on is adopted.

        ``attributes`` gives credentials again, by guid, which are never written down, and ``fm`` the failure manager,
        where that was given and comes from no document; what was judged before is not judged again. Raises StorageError
        where there is no journal, and FolderInUseError where the process lives.
        """
        left = left_in(run_dir)
        with left.held():
            made = cls(left=left, fm=policy_left_in(left.folder.run_dir) if fm is None else fm, federation=federation)
            try:
                for guid, values in (attributes or {}).items():
                    made.get_resource(guid).give(values)
                made._doing.take_up(left)
            except BaseException:
                made._give_up()
                raise
        return made

    @classmethod
    def load(
        cls,
        filepath: str | Path,
        format: str | None = None,  # noqa: A002 - NEPI's name
        *,
        nepi: int | None = None,
        local_dir: str | Path | None = None,
        fm: FailureManager | None = None,
        federation: Federation | None = None,
    ) -> Self:
        """Make a controller of a document of ours, or of NEPI 3 or 6, which ``nepi`` says where the file does not.

        Everything in it is NEW, and the run a new one. ``format`` is that of the file's ending where it is null;
        ``local_dir`` goes before the document's. Raises DescriptionError, NotFoundError, UnknownTypeError, and
        InvalidInputError for another format.
        """
        found = read(path_of("filepath", filepath), format=format, nepi=nepi)
        return cls.from_description(found, local_dir=local_dir, fm=fm, federation=federation)

    @classmethod
    def from_description(
        cls,
        description: Description,
        *,
        local_dir: str | Path | None = None,
        fm: FailureManager | None = None,
        federation: Federation | None = None,
        journal: bool = True,
        masked: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Self:
        """Make a controller of a description; ``masked`` are values that no document holds, by guid.

        Without ``fm`` failures mean what the description says. Raises what registering does, naming the resource.
        """
        made = cls(
            description.exp_id,
            description.local_dir if local_dir is None else local_dir,
            persist=description.persist,
            fm=manager_of(description.failures) if fm is None else fm,
            federation=federation,
            journal=journal,
            nthreads=description.nthreads,
        )
        try:
            if description.topology is not None:
                made._netgraph = build_topology(description.topology)
            build(description, made._book, made._wiring, masked=masked or {})
            if journal and description.failures is not None:
                keep_policy(made.describe(), made.folder.run_dir)
        except BaseException:
            made._life.shutdown()
            raise
        return made

    def repeats(self) -> Callable[[], Self]:
        """Return what makes controllers of the experiment as it stands now, everything in it NEW, one for each run.

        They have what no document holds, too: the class, the federation, credentials, whether there is a journal, and
        a copy of the failure manager. Raises InvalidPolicyError for one that cannot be copied.
        """
        description = self.describe()
        masked = {resource.guid: resource.masked_values() for resource in self._book.all()}
        fresh_copy(self.fm)  # so that one that cannot be is found before the first run
        return lambda: self.from_description(
            description,
            fm=fresh_copy(self.fm),
            federation=self._link.given,
            journal=self.is_journaled,
            masked=masked,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return (
            f"<ExperimentController {self.exp_id} {self.run_id}: {self.ecstate.name}, {len(self.resources)} resources>"
        )

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def exp_id(self) -> str:
        """The experiment's id."""
        return self.folder.exp_id

    @property
    def run_id(self) -> str:
        """The run's id: when it began, in 20 digits."""
        return self.folder.run_id

    @property
    def local_dir(self) -> str:
        """The folder of all experiments."""
        return str(self.folder.local_dir)

    @property
    def exp_dir(self) -> str:
        """The folder of this experiment."""
        return str(self.folder.exp_dir)

    @property
    def run_dir(self) -> str:
        """The folder of this run."""
        return str(self.folder.run_dir)

    @property
    def federation(self) -> Federation:
        """The federation that resources use; connects where that was not done. Raises ConnectionFailedError."""
        return self._link.get()

    @property
    def ecstate(self) -> ECState:
        """How the controller is."""
        self._doing.heed()
        return self._life.state

    @property
    def failure_level(self) -> FailureLevel:
        """How bad it is."""
        self._doing.heed()
        return self._engine.state.level

    @property
    def abort(self) -> bool:
        """Whether a failure ended all waiting."""
        self._doing.heed()
        return self._engine.state.is_aborted

    @property
    def snapshot(self) -> State:
        """Everything the machine knows, at this moment; it does not change."""
        return self._engine.state

    def _keep(self) -> None:
        if self.persist:
            self.save()
