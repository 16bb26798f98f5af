"""What a `Federation` can do with runs of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedmon.common.settings import ResearcherSettings
from fedmon.researcher.asking.nodelist import Nodelist, node_ids

if TYPE_CHECKING:
    from fedmon.common.plan_source import Plan
    from fedmon.common.wire.messages import ApprovalReply
    from fedmon.common.wire.runs import RunLimits
    from fedmon.researcher.runs.handle import RunHandle
    from fedmon.researcher.runs.run_list import RunList
    from fedmon.researcher.session.parts import Parts

    Runnable = Plan | ApprovalReply


class Runs:
    """The part of a `Federation` that is about runs; see there."""

    settings: ResearcherSettings

    @property
    def parts(self) -> Parts:
        """The machinery behind this face."""
        raise NotImplementedError

    def run(
        self,
        plan: Runnable,
        *,
        nodes: Nodelist = None,
        tags: Sequence[str] | None = None,
        dataset: str | None = None,
        args: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        limits: RunLimits | Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        job_id: str | None = None,
    ) -> RunHandle:
        """Run an approved plan on nodes; returns as soon as every node accepted or refused, see `RunHandle`.

        ``plan`` is as in `approve`, the answer to it, or ``sha256:`` and a digest. It runs on the nodes named, or on
        all that are there; with ``tags``, or the id of a ``dataset``, on those that offer such a dataset, which the
        plan then gets. ``args`` are JSON values, ``inputs`` JSON values and numpy arrays, which go through the
        repository of the settings when they are large; all nodes get the same. ``limits`` are those of RunLimits, and
        nodes lower them to their own. A node starts a ``job_id`` once, however often it is asked; one is made up where
        it is null. Raises InvalidInputError, naming the value, before anything is sent, and NobodyToRunError, a
        NoAnswerError, when there is no node to ask.
        """
        from fedmon.researcher.runs.inputs import digest_of
        from fedmon.researcher.runs.starting import start_run

        return start_run(
            self.parts,
            sha256=digest_of(plan),
            nodes=node_ids(nodes),
            tags=tags,
            dataset_id=dataset,
            arguments=args,
            inputs=inputs,
            limits=limits,
            repository=self.settings.repository,
            timeout_s=timeout_s,
            job_id=job_id,
        )

    def job(
        self,
        job_id: str,
        *,
        nodes: Nodelist = None,
        expected: Nodelist = None,
        timeout_s: float | None = None,
    ) -> RunHandle:
        """Return a run by its id, also one that another process of this researcher started; waits for nobody to end.

        Nodes that are ``expected`` to have it count as part of it while they are silent, until they say that they do
        not know it. Raises RunNotKnownError, a NotFoundError, when no node knows it, and nothing of it is kept here.
        """
        from fedmon.researcher.runs.finding import find_run

        return find_run(
            self.parts,
            job_id,
            nodes=node_ids(nodes),
            expected=node_ids(expected) or (),
            repository=self.settings.repository,
            timeout_s=timeout_s,
        )

    def jobs(self, *, nodes: Nodelist = None, timeout_s: float | None = None) -> RunList:
        """Ask nodes for all jobs of this researcher that they know; shows the runs, newest first."""
        from fedmon.researcher.runs.finding import all_jobs

        return all_jobs(self.parts, nodes=node_ids(nodes), timeout_s=timeout_s)
