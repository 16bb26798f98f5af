"""The runs of a researcher that nodes know: a row a run, however many nodes it runs on."""

from __future__ import annotations

from fedmon.common.wire.runs import Job, JobsReply, JobState
from fedmon.researcher.asking.outcome import Outcomes
from fedmon.researcher.asking.tables import Row, html_table, local_time, text_table
from fedmon.researcher.runs import tables
from fedmon.researcher.runs.wording import named, why_not


class RunList(Outcomes[JobsReply]):
    """What each node answered, by node id; shown as the runs that they know, newest first."""

    def __init__(self, outcomes: Outcomes[JobsReply]) -> None:
        super().__init__(
            outcomes.command,
            dict(outcomes.items()),
            circumstances=outcomes.circumstances,
            rows_of=tables.jobs,
            elapsed_s=outcomes.elapsed_s,
        )

    def runs(self) -> dict[str, dict[str, Job]]:
        """Return the jobs by their id and the node, newest first."""
        found: dict[str, dict[str, Job]] = {}
        for node_id, reply in self.ok.items():
            for job in reply.jobs:
                found.setdefault(job.job_id, {})[str(node_id)] = job
        return dict(sorted(found.items(), key=lambda one: min(job.created for job in one[1].values()), reverse=True))

    def rows(self) -> list[Row]:
        """Return a row for each run: its id, its plan, when it was asked for, and how it stands on its nodes."""
        return [
            {
                "job": job_id,
                "plan": next(iter(jobs.values())).name,
                "began": min(job.created for job in jobs.values()),
                "nodes": _standing(jobs),
            }
            for job_id, jobs in self.runs().items()
        ]

    def explanation(self) -> str:
        """Say how many runs there are, and who did not tell of his."""
        if not self:
            return super().explanation()
        known = f"runs of {self.circumstances.researcher_id} that {len(self.ok)} nodes know: {len(self.runs())}"
        return "; ".join([known, *why_not(self)])

    def text(self, limit: int | None = None) -> str:
        """Return the newest runs as a table, and say how many more there are."""
        rows = self.rows()
        # An id is not to be folded: the moment takes no more than it must.
        shown = [row | {"began": local_time(row["began"])[5:16]} for row in rows[:limit]]
        more = [f"... and {len(rows) - len(shown)} older ones"] if len(shown) < len(rows) else []
        return "\n".join([*([text_table(shown)] if shown else []), *more, self.explanation()])

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html_table(self.rows(), caption=self.explanation())


def _standing(jobs: dict[str, Job]) -> str:
    """Return how many nodes stand how; those that did not succeed are named."""
    nodes: dict[JobState, list[str]] = {}
    for node_id, job in jobs.items():
        nodes.setdefault(job.state, []).append(node_id)
    alike = len(nodes) == 1
    return ", ".join(
        f"{len(node_ids)} {state.value}"
        + ("" if alike or state is JobState.SUCCEEDED else f" ({named(sorted(node_ids))})")
        for state, node_ids in sorted(nodes.items(), key=lambda one: one[0].value)
    )
