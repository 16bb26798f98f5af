"""The owner's commands: run by the daemon for clients of its control socket, or by the shell while it is stopped."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import inspect
import logging
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedmon import __version__
from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError, FedmonError, InvalidInputError, NotFoundError
from fedmon.common.ids import checked_id, chosen, new_id
from fedmon.common.settings.sources import load_node
from fedmon.common.settings.values import EVERYBODY, NodeSettings, PolicySettings
from fedmon.common.wire.grants import Grant
from fedmon.common.wire.messages import PlanStatus
from fedmon.common.wire.runs import JobState, TracePiece
from fedmon.node.folder import NodeFolder
from fedmon.node.measure.jobs import JobOrigin, JobWatches, WatchedJob
from fedmon.node.measure.publisher import PER_S, UserValues
from fedmon.node.owner.control import RESTART, DaemonNotRunningError
from fedmon.node.registers.dataset_source import DatasetShape
from fedmon.node.registers.datasets import DatasetFields, DatasetRecord
from fedmon.node.registers.grants import EVERY, Declared, GrantRequest, Terms, checked_rules, until_of, wished_datasets
from fedmon.node.registers.plan_source import MAX_TEXT_LENGTH, CodeCheck, check_now, diff, visible, visible_text
from fedmon.node.registers.plans import PlanRecord
from fedmon.node.registers.state import Registers
from fedmon.node.requests.policy import Policy, PolicyWish, allow, deny, with_policy
from fedmon.node.runs.folder import JobFolder, Logged
from fedmon.node.runs.outcome import inline
from fedmon.node.runs.register import WITHDRAWN, JobRecord, ReleaseDecision

if TYPE_CHECKING:
    from fedmon.node.measure.pipeline import Pipeline
    from fedmon.node.runs.service import Runs

logger = logging.getLogger(__name__)

Document = dict[str, Any]
Note = Annotated[str, Meta(max_length=MAX_TEXT_LENGTH)]
ResultNote = Annotated[str, Meta(max_length=1_000)]
"""It travels beside a result, which may fill the rest of its message."""

RESTORED_SHOWN = datetime.timedelta(days=30)
_SHOWN_BYTES = 16_384
_SHOWN_LINES = 20
_POLICY_VARIABLE = "FEDMON_POLICY_"
_SET_ASIDE = "*.sqlite.damaged-*Z"
"""Registers and recordings that were found damaged; they stay until the owner has inspected them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunningNode:
    """The parts that only a running node can serve.

    ``push(researchers)`` sends them the outbox, ``check_plan(sha256)`` has a new plan read by a worker,
    ``follow(settings)`` makes the node obey changed settings, and ``live()`` returns the part of the status that is in
    no register.
    """

    push: Callable[[Iterable[str]], None]
    check_plan: Callable[[str], object]
    follow: Callable[[NodeSettings], object]
    live: Callable[[], Document]
    measuring: Pipeline
    runs: Runs


class BeingReadError(ConflictError):
    """A worker of the running node has to read the plan first; a shell waits for that."""


class FoundJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch job as the owner's shell found it; of processes their numbers, each with its start in ticks."""

    origin: JobOrigin
    processes: list[tuple[int, int]]
    overhead: list[tuple[int, int]] = []
    marker: str | None = None


class OwnerCommands:
    """Everything that a node's owner can have done; ``COMMANDS`` names each command and its method.

    The keyword arguments of a method are the arguments of its command, and its result is a JSON document. ``running``
    is None while no daemon runs, and `settings` are those in force. Belongs to the thread of the registers.
    """

    def __init__(
        self,
        folder: NodeFolder,
        settings: NodeSettings,
        registers: Registers,
        *,
        environ: Mapping[str, str],
        running: RunningNode | None = None,
    ) -> None:
        self._folder, self.settings, self._environ = folder, settings, environ
        self.registers, self._running = registers, running

    def run(self, command: str, args: Mapping[str, Any], *, by: str) -> Document:
        """Run one command; the audit names the user ``by``.

        Raises InvalidInputError for a command or argument that it does not know, and the errors of the registers.
        """
        if command not in COMMANDS:
            raise InvalidInputError(f"this node has no command {command!r}; {RESTART}")
        method, self._by = COMMANDS[command], by
        try:
            values = msgspec.convert(dict(args), _arguments(method))
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"{command}: {error}") from None
        return method(self, **msgspec.structs.asdict(values))

    # --- the node ----------------------------------------------------------------------------------------------------

    def status(self) -> Document:
        """Show how the node is; ``live`` is None while no daemon runs."""
        settings, registers = self.settings, self.registers
        policy = Policy(settings.policy, settings.id)
        plans = collections.Counter(plan.status.value for plan in registers.plans.all())
        report, moment = registers.database.mark("report"), registers.database.restored
        try:
            set_aside = sorted(path.name for path in self._folder.path.glob(_SET_ASIDE))
        except OSError:  # such as too many open files
            set_aside = None
        return {
            "node_id": settings.id,
            "folder": str(self._folder.path),
            "agent_version": __version__,
            "broker": settings.broker.url,
            "wire": settings.wire,
            "live": None if self._running is None else self._running.live(),
            **_rules(policy),
            "metrics": msgspec.to_builtins(settings.metrics, enc_hook=str),  # its roots are paths
            "runs": {
                "enabled": settings.runs.enabled and settings.wire == "fedmon",
                "minimum": settings.runs.sandbox,
                "max_jobs": settings.runs.max_jobs,
            },
            "release": {"mode": settings.release.mode, "held": len(self._held())},
            "datasets": len(registers.datasets.all()),
            "plans": {name: plans.get(name, 0) for name in ("pending", "approved", "rejected")},
            "grants": {
                "without_limit": registers.plans.grants.without_limit(),
                "asked_again": len(registers.plans.grants.asked_again()),
            },
            "undelivered": registers.outbox.waiting(),
            "restored": None
            if report is None or moment is None or utc_now() - moment > RESTORED_SHOWN
            else {"time": moment.isoformat(timespec="seconds"), "report": report},
            "set_aside": set_aside,
            "refused": msgspec.to_builtins(registers.refused.waiting(policy.refusal)),
        }

    def requests(self) -> Document:
        """List waiting plans and refused researchers, the latest first."""
        refusal = Policy(self.settings.policy, self.settings.id).refusal
        plans = self.registers.plans
        again = plans.grants.asked_again()
        return {
            "plans": [
                {
                    **_plan(plan),
                    "asked_again": plan.plan_id in again,
                    "requested_by": list(again.get(plan.plan_id) or plans.grants.requesters(plan.plan_id)),
                    "requested": max(again.get(plan.plan_id, {}).values(), default=None),
                }
                for plan in plans.all()
                if plan.status is PlanStatus.PENDING or plan.plan_id in again
            ],
            "researchers": msgspec.to_builtins(self.registers.refused.waiting(refusal)),
        }

    def quota(self) -> Document:
        """Show each researcher's use of the quotas; counts in memory are null while no daemon runs."""
        quotas, obeyed = self.registers.quotas, self.settings.policy.researchers
        counted = () if self._running is not None else ("requests", "changes", "audit_bytes", "refused")
        found = [
            {"researcher_id": who, **quotas.used(who), **dict.fromkeys(counted)}
            for who in sorted({*quotas.researchers(), *obeyed} - {EVERYBODY})
        ]
        return {
            "running": self._running is not None,
            "quota": msgspec.to_builtins(self.settings.quota),
            "researchers": found,
        }

    def audit_prune(self, *, keep_days: int) -> Document:
        """Remove older lines of the audit; the register's copy is renewed, so that a restore needs none of them."""
        self.registers.database.copy()
        before = utc_now() - datetime.timedelta(days=keep_days)
        pruned = self.registers.audit.prune(before, by=self._by)
        return {"before": before.isoformat(timespec="seconds"), "pruned": pruned}

    def policy_change(self, *, verb: Literal["allow", "deny"], wish: PolicyWish) -> Document:
        """Allow or deny in node.toml, and obey that from now on.

        A dataset may be named by the beginning of its id. Raises ConflictError, and SettingsError for rules that the
        settings refuse.
        """
        path, audit, names = self._folder.settings_file, self.registers.audit, dict[str, bool]()
        without_policy = {name: value for name, value in self._environ.items() if not name.startswith(_POLICY_VARIABLE)}
        before = load_node(self._folder.path, without_policy).policy
        for each in wish.datasets:
            try:
                found = self.registers.datasets.get(each)
                typed = each if each == found.name else found.dataset_id
                # The rule that holds now is changed, however the dataset is named here.
                names[next((key for key in (found.dataset_id, found.name) if key in before.datasets), typed)] = True
            except (NotFoundError, InvalidInputError):
                names[each] = False
        wish = msgspec.structs.replace(wish, datasets=tuple(names))
        rules = (allow if verb == "allow" else deny)(before, wish)
        text = with_policy(path.read_text(encoding="utf-8"), rules)
        change = {"verb": verb, **{name: value for name, value in msgspec.to_builtins(wish).items() if value}}
        audit.record("policy-change", change=change, by=self._by)
        audit.sync()
        self._folder.write_private(path, text.encode())
        self.settings = load_node(self._folder.path, self._environ)
        if self._running is not None:
            self._running.follow(self.settings)
        effective = self.settings.policy
        overridden = [
            f"{_POLICY_VARIABLE}{name}".upper()
            for name in PolicySettings.__struct_fields__
            if getattr(rules, name) != getattr(effective, name)
        ]
        policy = Policy(effective, self.settings.id)
        return {
            **_rules(policy),
            "overridden_by": overridden,
            "notes": [
                *(
                    f"a job of {each.researcher_id} goes on; stop it with: fedmon node runs stop {each.job.job_id}"
                    for each in self.registers.jobs.going_on()
                    if verb == "deny" and policy.refusal(each.researcher_id) and each.job.state is not JobState.HELD
                ),
                *(["no rule matched: nothing changed"] if verb == "deny" and rules == before else []),
                *(
                    f"dataset {name} is from now on listed to {', '.join(wish.researchers)} only; "
                    "until now every researcher that is obeyed could see it"
                    for name in names
                    if verb == "allow" and names[name] and name not in before.datasets
                ),
                *(f"dataset {name!r} not found yet; the rule waits for it" for name in names if not names[name]),
                *(
                    f"the environment variable {each} overrides the file: unset it where the node is started"
                    for each in overridden
                ),
            ],
        }

    # --- datasets ----------------------------------------------------------------------------------------------------

    def dataset_list(self, *, tags: tuple[str, ...] = ()) -> Document:
        """List the datasets that carry every one of ``tags``."""
        return {"datasets": [self._dataset(record) for record in self.registers.datasets.search(tags)]}

    def dataset_show(self, *, dataset: str) -> Document:
        """Show one dataset, by its name or id."""
        return {"dataset": self._dataset(self.registers.datasets.get(dataset))}

    def dataset_add(self, *, dataset: DatasetFields, found: DatasetShape) -> Document:
        """Offer a dataset, which the shell has measured: reading a large table would delay the node's requests."""
        with self.registers.database.transaction():
            return self._changed("dataset-add", self.registers.datasets.add(dataset, found))

    def dataset_edit(self, *, dataset: str, changes: DatasetFields, found: DatasetShape | None = None) -> Document:
        """Change a dataset; ``found`` comes with a new path or type.

        Raises ConflictError if a rule restricts it by its present name: the new name would be listed to all.
        """
        with self.registers.database.transaction():
            old, name = self.registers.datasets.get(dataset), changes.name
            rules = self.settings.policy.datasets
            if name not in (None, old.name) and old.name in rules and not {name, old.dataset_id} & rules.keys():
                raise ConflictError(
                    f"a rule lists dataset {old.name!r} to {', '.join(rules[old.name]) or 'none'} by that name: "
                    f"write it for {name!r} first, with: fedmon node policy allow RESEARCHER --dataset {name!r}"
                )
            return self._changed("dataset-edit", self.registers.datasets.edit(old.dataset_id, changes, found))

    def dataset_remove(self, *, dataset: str) -> Document:
        """Offer a dataset no longer; its files stay."""
        with self.registers.database.transaction():
            return self._changed("dataset-remove", self.registers.datasets.remove(dataset))

    def _dataset(self, record: DatasetRecord) -> Document:
        """Return a record and its rule: the researchers that may see it (None: all that are obeyed)."""
        rules = self.settings.policy.datasets
        rule = rules.get(record.dataset_id, rules.get(record.name))
        return {**msgspec.to_builtins(record), "listed_to": None if rule is None else list(rule)}

    def _dataset_names(self) -> dict[str | None, str]:
        return {each.dataset_id: each.name for each in self.registers.datasets.all()}

    def _changed(self, event: str, dataset: DatasetRecord) -> Document:
        """Return a dataset, with the line about its change on the disk before the register commits."""
        self.registers.database.record(
            event,
            dataset_id=dataset.dataset_id,
            name=dataset.name,
            tags=list(dataset.tags),
            path=dataset.path,
            by=self._by,
            **({} if event == "dataset-remove" else {"record": msgspec.to_builtins(dataset)}),
        )
        return {"dataset": self._dataset(dataset)}

    # --- training plans ----------------------------------------------------------------------------------------------
    # A plan is named by its id, its digest, the beginning of one of them, or its name.

    def plan_list(self) -> Document:
        """List the plans, oldest first."""
        return {"plans": [_plan(plan) for plan in self.registers.plans.all()]}

    def plan_show(self, *, plan: str, terms: Terms | None = None) -> Document:
        """Show everything of a plan, the grant that an approval with these terms gives, and the source."""
        plans, grants = self.registers.plans, self.registers.plans.grants
        found = plans.get(plan)
        before = plans.last_approved(found.name, other_than=found.sha256)
        earlier = [] if before is None else grants.of(before.sha256)
        return {
            "plan": {**_plan(found), "requested_by": list(grants.requesters(found.plan_id))},
            "asked": msgspec.to_builtins(grants.wishes(found.plan_id)),
            "grants": [
                {"grant": msgspec.to_builtins(record.grant), "runs_left": record.runs_left}
                for record in grants.of(found.sha256)
            ],
            "proposed": msgspec.to_builtins(self._proposed(found, terms)),
            "before": msgspec.to_builtins(earlier[-1].grant) if earlier else None,
            "datasets": self._dataset_names(),
            "release": msgspec.to_builtins(self.settings.release),
            "source": visible(plans.store.read(found.sha256)),
        }

    def plan_diff(self, *, plan: str) -> Document:
        """Compare a plan with the plan of its name that was approved last."""
        plans = self.registers.plans
        found = plans.get(plan)
        before = plans.last_approved(found.name, other_than=found.sha256)
        if before is None:
            raise NotFoundError(
                f"no other plan named {visible_text(found.name)!r} was approved here: read all of it with "
                f"'fedmon node plan show {found.plan_id}'"
            )
        text = diff(
            plans.store.read(before.sha256),
            plans.store.read(found.sha256),
            old_name=f"sha256 {before.sha256}",
            new_name=f"sha256 {found.sha256}",
        )
        return {"plan": _plan(found), "against": _plan(before), "diff": text, "same": not text}

    def plan_decide(
        self,
        *,
        plan: str,
        status: PlanStatus,
        note: Note = "",
        terms: Terms | None = None,
        grant: Grant | None = None,
        asked: list[GrantRequest] | None = None,
    ) -> Document:
        """Decide about exact bytes, with the researchers' messages in the outbox.

        An approval names the plan by its whole id or digest, and gives the ``grant`` that the owner saw, or else the
        one that these terms propose now. It is refused if it would answer an open request that is not among those
        ``asked`` that the owner saw.
        """
        registers = self.registers
        with registers.database.transaction():
            found = registers.plans.get(plan)
            granted = None
            if status is PlanStatus.APPROVED:
                if plan not in (found.plan_id, found.sha256):
                    raise InvalidInputError(f"{plan!r:.80} could mean other bytes: approve by the whole id or sha256")
                granted = msgspec.structs.replace(grant or self._proposed(found, terms), sha256=found.sha256, note=note)
                if asked is not None:
                    _require_seen(registers.plans.grants.wishes(found.plan_id), granted, asked)
            decision = registers.plans.decide(found.plan_id, status, note=note, by=self._by, grant=granted)
            registers.announce(decision)
        if self._running is not None:
            self._running.push(decision.researchers)
        if status is not PlanStatus.APPROVED:
            self._stop_runs_of(found)
        return {
            "plan": _plan(decision.plan),
            "changed": decision.grant is not None or (found.status, found.note) != (status, note),
            "grant": None if decision.grant is None else msgspec.to_builtins(decision.grant),
            "tells": list(decision.researchers),
        }

    def plan_register(self, *, source: bytes, name: str, check: CodeCheck, description: str = "") -> Document:
        """Take in the owner's own plan, approved by that for all researchers that are obeyed.

        The shell has read and checked it: that would delay the node's requests.
        """
        plans, sha256 = self.registers.plans, hashlib.sha256(source).hexdigest()
        grant = self._grant(sha256, Terms(), check.declared)
        with self.registers.database.transaction():
            plans.register(source, name=name, description=description, by=self._by, grant=grant)
            plans.record_check(sha256, check)
            return {"plan": _plan(plans.get(sha256))}

    def plan_delete(self, *, plan: str) -> Document:
        """Forget a plan, its bytes and its approval."""
        deleted = self.registers.plans.delete(plan, by=self._by)
        self._stop_runs_of(deleted)
        return {"plan": _plan(deleted)}

    def _proposed(self, plan: PlanRecord, terms: Terms | None) -> Grant:
        """Return the grant that an approval with these terms gives; raises InvalidInputError, NotFoundError.

        By default it is for those who ask, and the datasets that they ask for, with the use that the plan declares.
        """
        plans = self.registers.plans
        if self.settings.wire == "fedbiomed4" and terms is None:  # that wire runs no plans for us
            return Grant(grant_id=new_id(), sha256=plan.sha256)
        declared = plans.grants.declared(plan.sha256)
        if declared is None:
            source = plans.store.read(plan.sha256)
            if self._running is not None:
                self._running.check_plan(plan.sha256)
                before = f" again (it {plan.problem})" if plan.problem else ""
                raise BeingReadError(f"plan {plan.plan_id} is being read{before}: try again in a few seconds")
            declared = check_now(source).declared
        wishes = plans.grants.wishes(plan.plan_id)
        asking = [wish for wish in wishes if wish.is_open or plan.status is PlanStatus.PENDING]
        earlier = [wish for wish in wishes if wish.researcher_id not in {each.researcher_id for each in asking}]
        return self._grant(plan.sha256, terms or Terms(), declared, asking=asking or earlier, earlier=earlier)

    def _grant(
        self,
        sha256: str,
        terms: Terms,
        declared: Declared,
        *,
        asking: Sequence[GrantRequest] = (),
        earlier: Sequence[GrantRequest] = (),
    ) -> Grant:
        datasets, policy = self.registers.datasets, Policy(self.settings.policy, self.settings.id)

        def listed(researcher_id: str) -> Collection[str]:
            return policy.seen(researcher_id, datasets.all())

        researchers = tuple(dict.fromkeys(wish.researcher_id for wish in asking)) or None
        if terms.researchers is not None:
            named = tuple(checked_id(each, what="researcher") for each in terms.researchers if each != EVERY)
            researchers = None if EVERY in terms.researchers else named
        if terms.datasets is None:
            granted = wished_datasets(researchers, asking if researchers is None else [*asking, *earlier], listed)
        else:
            granted = tuple(datasets.get(each).dataset_id for each in terms.datasets if each != EVERY)
            granted = None if EVERY in terms.datasets else granted
        return Grant(
            grant_id=new_id(),
            sha256=sha256,
            researchers=researchers,
            datasets=granted,
            arguments=declared.arguments if terms.arguments is None else checked_rules(terms.arguments),
            scalars=declared.scalars,
            texts=declared.texts,
            values=declared.values if terms.values is None else terms.values,
            runs=terms.runs,
            until=until_of(terms.until),
            release=terms.release,
        )

    def _stop_runs_of(self, plan: PlanRecord) -> None:
        """Stop the runs of a plan that is approved no longer; the next daemon tells of those that a shell stops."""
        if self._running is not None:
            self._running.runs.plan_withdrawn(plan.sha256)
            return
        for job in [record.job for record in self.registers.jobs.going_on() if record.job.sha256 == plan.sha256]:
            try:
                JobFolder(self._folder.runs_dir / job.job_id).stop(JobState.PLAN_REJECTED, WITHDRAWN)
            except FedmonError as problem:
                logger.error("job %s cannot be stopped: %s", job.job_id, problem)  # noqa: TRY400

    # --- runs of plans -----------------------------------------------------------------------------------------------

    def run_list(self, *, limit: int) -> Document:
        """List the jobs of all researchers, newest first."""
        return {"runs": [_run(record) for record in self.registers.jobs.of(None, offset=0, limit=limit)]}

    def run_show(self, *, job_id: str) -> Document:
        """Show a job with the end of its output and of its log, and its folder."""
        record = self._run_record(job_id)
        path = self._folder.runs_dir / record.job.job_id
        return {
            "run": _run(record),
            "dataset": self._dataset_names().get(record.job.dataset_id),
            "folder": str(path) if path.is_dir() else None,
            **_output(JobFolder(path)),
            "logged": _logged(JobFolder(path)),
        }

    def run_stop(self, *, job_id: str) -> Document:
        """Have a job end; its researcher is told that its owner did it."""
        runs, record = self._running_node("stops jobs").runs, self._run_record(job_id)
        found = record.job.job_id
        if record.job.state is JobState.HELD and record.decision is None:
            raise ConflictError(f"job {found} has ended, and its result is held: fedmon node results withhold {found}")
        if record.job.state.is_running:
            runs.stop_by_owner(found, by=self._by)
        return {"run": _run(self._run_record(found))}

    def _run_record(self, reference: str) -> JobRecord:
        """Return a job by its id, or by the beginning of it if that is enough."""
        ids = {each: each for each in self.registers.jobs.ids()}
        job_id = chosen(reference, ids, what="job", see="fedmon node runs")
        found = self.registers.jobs.find(job_id)
        if found is None:
            raise NotFoundError(f"job {job_id} is no longer kept here; see: fedmon node runs")
        return found

    # --- results that wait for the owner ------------------------------------------------------------------------------

    def result_list(self) -> Document:
        """List the results that are held, oldest first."""
        return {"results": [_result(record) for record in self._held()]}

    def result_show(self, *, job_id: str) -> Document:
        """Show a held result, and where its file is."""
        record = self._held_record(job_id)
        return {
            "result": _result(record),
            "dataset": self._dataset_names().get(record.job.dataset_id),
            "file": str(JobFolder(self._folder.runs_dir / record.job.job_id).result),
        }

    def result_decide(self, *, job_id: str, release: bool, sha256: str = "", note: ResultNote = "") -> Document:
        """Release exactly the bytes of a digest, or withhold a result; carried out by the daemon."""
        record = self._held_record(job_id)
        held, result = record.job.job_id, record.result
        if release:
            if result is None or sha256 != result.sha256:
                raise ConflictError(
                    f"the held result of job {held} is not the one with SHA-256 {sha256 or '(none)'}: look at it again "
                    f"with 'fedmon node results show {held}'"
                )
            is_small = inline(JobFolder(self._folder.runs_dir / held).result, result) is not None
            if not is_small and self.settings.repository.url is None:
                raise ConflictError(
                    f"the result of job {held} is too large for a message ({result.size_bytes} bytes), and this node "
                    "has no file repository: name one with `url` in [repository] of node.toml"
                )
        decision = ReleaseDecision(released=release, by=self._by, note=note)
        self.registers.jobs.decide(record, decision)
        if self._running is not None:
            self._running.runs.carry_out_decisions()
        return {"result": _result(record), "released": release, "note": note, "sent": self._running is not None}

    def released(self) -> Document:
        """Count how much left of runs, by month, researcher and dataset."""
        names = self._dataset_names()
        return {"released": [{**row, "dataset": names.get(row["dataset_id"])} for row in self.registers.ledger.rows()]}

    def _held(self) -> list[JobRecord]:
        """Return the held results that are not decided about."""
        return [each for each in self.registers.jobs.held() if each.decision is None]

    def _held_record(self, reference: str) -> JobRecord:
        """Return a held result by the id of its job, or by the beginning of it if that is enough."""
        held = {each.job.job_id: each for each in self._held()}
        return held[
            chosen(reference, {each: each for each in held}, what="held result", see="fedmon node results list")
        ]

    # --- jobs that the node watches, and values of programs ----------------------------------------------------------

    def job_list(self) -> Document:
        """List the jobs that are watched, and those that were."""
        return {"jobs": [_job(record) for record in self._jobs().records()]}

    def job_watch(
        self,
        *,
        job_id: str,
        pids: tuple[int, ...] = (),
        cgroup: str | None = None,
        name: str = "",
        found: FoundJob | None = None,
    ) -> Document:
        """Watch a job from the next sample on: by its root processes, its cgroup, or the shell's finding."""
        facts = {}
        if found is None:
            record = self._jobs().add(job_id, pids=pids, cgroup=cgroup, name=name)
        else:
            from fedmon.node.job.processes import is_overhead_now  # what finds batch jobs is needed for these alone

            pids = tuple(pid for pid, _ in found.processes)
            record = self._jobs().add(
                job_id, pids=pids, cgroup=cgroup, name=name, marker=found.marker, starts=dict(found.processes),
                overhead=dict(found.overhead), is_overhead_now=is_overhead_now, origin=found.origin,
            )  # fmt: skip
            facts = {"scheduler": found.origin.scheduler, "method": found.origin.method}
        self.registers.audit.record(
            "job-watch", job_id=record.job_id, pids=pids, cgroup=record.cgroup, **facts, by=self._by
        )
        return {"job": _job(record)}

    def job_forget(self, *, job_id: str) -> Document:
        """Watch a job no longer, by its own id or its scheduler's; its processes are left alone."""
        ids = {
            name: each.job_id
            for each in self._jobs().records()
            if each.ended is None
            for name in (each.job_id, each.job_id if each.origin is None else each.origin.job_id)
        }
        record = self._jobs().remove(chosen(job_id, ids, what="watched job", see="fedmon node job list"))
        self.registers.audit.record("job-forget", job_id=record.job_id, by=self._by)
        return {"job": _job(record)}

    def add_scalar(
        self,
        *,
        name: str,
        value: float | str,
        step: int | None = None,
        t: float | None = None,
        job: str | None = None,
    ) -> Document:
        """Put a value of a program on the time axis of the node's samples.

        The value may be a text, since JSON cannot write one that is not finite. Raises ConflictError if the node
        measures nothing, or if values come too fast.
        """
        values: UserValues = self._measuring("takes values").user_values
        try:
            number = float(value)
        except ValueError:
            raise InvalidInputError(f"the value of {name!r} is {value!r}, not a number") from None
        if not values.add_scalar(name, number, step, t, job=job):
            raise ConflictError(f"{name!r} was dropped: this node takes {PER_S:g} values a second in the long run")
        return {"name": name, "taken": True}

    def _jobs(self) -> JobWatches:
        return self._measuring("watches jobs").jobs

    def _measuring(self, does: str) -> Pipeline:
        measuring = self._running_node(does).measuring
        if not measuring.enabled:
            raise ConflictError(f"only a node that measures {does}: start it with enabled = true in [metrics]")
        return measuring

    def _running_node(self, does: str) -> RunningNode:
        if self._running is None:
            raise DaemonNotRunningError(
                f"the node of {self._folder.path} is not running, and only a running node {does}: start it with "
                "'fedmon node start'"
            )
        return self._running


COMMANDS: Mapping[str, Callable[..., Document]] = {
    name.replace("_", "-"): method
    for name, method in vars(OwnerCommands).items()
    if inspect.isfunction(method) and not name.startswith("_") and name != "run"
}
"""Name of each command, and the method that runs it: every public one but `run`."""


@functools.cache
def _arguments(method: Callable[..., Document]) -> type[msgspec.Struct]:
    """Derive from a method's signature the type that its arguments are decoded to."""
    types = typing.get_type_hints(method, include_extras=True)
    fields: list[Any] = [
        (name, types[name]) if parameter.default is parameter.empty else (name, types[name], parameter.default)
        for name, parameter in inspect.signature(method).parameters.items()
        if name != "self"
    ]
    return msgspec.defstruct(method.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _rules(policy: Policy) -> Document:
    return {
        "policy": msgspec.to_builtins(policy.settings),
        "rules": list(policy.describe()),
        "obeys_nobody": policy.obeys_nobody,
    }


def _require_seen(wishes: Sequence[GrantRequest], grant: Grant, seen: Sequence[GrantRequest]) -> None:
    for wish in wishes:
        if wish.is_open and wish not in seen and (grant.researchers is None or wish.researcher_id in grant.researchers):
            raise ConflictError(f"{wish.researcher_id} asked for something else meanwhile: look at the plan again")


def _plan(plan: PlanRecord) -> Document:
    return {**msgspec.to_builtins(plan), "hint": plan.hint}


def _run(record: JobRecord) -> Document:
    result = None if record.result is None else {"sha256": record.result.sha256, "bytes": record.result.size_bytes}
    job = msgspec.to_builtins(record.job)
    if record.decision is not None and record.job.state is JobState.HELD:
        job["reason"] = f"{record.decision.reason}; {record.researcher_id} is not told yet"
    return {"researcher_id": record.researcher_id, **job, "result": result}


def _result(record: JobRecord) -> Document:
    return {**_run(record), "numbers": record.numbers, "format": record.result and record.result.format}


def _output(folder: JobFolder) -> Document:
    """Return the ends of a plan's output, and the bytes before them; None for a stream that cannot be read."""
    ends: dict[str, TracePiece | None] = {"stdout": None, "stderr": None}
    for name in ends:
        with contextlib.suppress(FedmonError):
            size_bytes = folder.trace(name, 0, 1).size_bytes
            piece = folder.trace(name, max(0, size_bytes - _SHOWN_BYTES), _SHOWN_BYTES)
            rest = folder.trace(name, piece.next_offset, _SHOWN_BYTES)
            ends[name] = rest if rest.skipped_bytes else piece  # of a short trace the bytes between are not kept
    return {
        "output": {name: end and visible_text(end.text) for name, end in ends.items()},
        "output_offset": {name: end and end.offset for name, end in ends.items()},
    }


def _logged(folder: JobFolder) -> list[str]:
    """Return the last lines that the plan logged."""
    with contextlib.suppress(FedmonError):
        logged = (event for event, _ in folder.events() if isinstance(event, Logged))
        last = collections.deque(logged, maxlen=_SHOWN_LINES)
        return [visible_text(f"{event.level} {event.message}") for event in last]
    return []


def _job(record: WatchedJob) -> Document:
    return {"state": "watched" if record.ended is None else "ended", **msgspec.to_builtins(record)}
