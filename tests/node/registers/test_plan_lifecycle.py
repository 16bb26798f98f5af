"""Whatever researchers and owner do in whatever order, the register says what a simple model says."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedmon.common.errors import ConflictError, NotFoundError
from fedmon.common.wire.messages import PlanDecision, PlanStatus
from fedmon.node.registers.database import Database
from fedmon.node.registers.plans import PlanRegister
from fedmon.node.requests.audit import Audit
from fedmon.node.requests.outbox import Outbox
from tests.support.envelopes import approval
from tests.support.node_process import audited

SOURCES = st.sampled_from([b"x = 1\n", b"x = 1", b"x = 2\n"])
RESEARCHERS = st.sampled_from(["r", "s"])
NOTES = st.sampled_from(["", "no", "yes"])


class PlanLifecycle(RuleBasedStateMachine):
    """Requests, decisions, deletions and restarts, against a mapping from bytes to what must be known of them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="plans-"))
        self.model: dict[bytes, tuple[PlanStatus, str]] = {}
        self.requesters: dict[bytes, list[str]] = {}
        self.expected: list[tuple[str, str, PlanStatus]] = []

    @initialize()
    def start(self) -> None:
        self.audit = Audit(self.folder)
        self.database = Database(self.folder / "state.sqlite", self.audit)
        self.plans = PlanRegister(self.database, self.folder / "plans")
        self.outbox = Outbox(self.database)

    def teardown(self) -> None:
        self.audit.close()
        self.database.close()
        shutil.rmtree(self.folder)

    @rule()
    def restart(self) -> None:
        self.audit.close()
        self.database.close()
        self.start()

    @rule(source=SOURCES, researcher=RESEARCHERS)
    def request(self, source: bytes, researcher: str) -> None:
        plan = self.plans.request(approval(source, by=researcher), source)
        status = self.model.setdefault(source, (PlanStatus.PENDING, ""))
        asked = self.requesters.setdefault(source, [])
        if researcher not in asked:
            asked.append(researcher)
        assert (plan.status, plan.note) == status

    @rule(source=SOURCES)
    def register(self, source: bytes) -> None:
        try:
            self.plans.register(source, name="own")
        except ConflictError:
            assert source in self.model
        else:
            assert source not in self.model
            self.model[source] = (PlanStatus.APPROVED, "")

    @rule(source=SOURCES, status=st.sampled_from(PlanStatus), note=NOTES)
    def decide(self, source: bytes, status: PlanStatus, note: str) -> None:
        digest = hashlib.sha256(source).hexdigest()
        try:
            with self.database.transaction():
                decision = self.plans.decide(digest, status, note=note)
                for message in decision.messages(node_id="n", boot=1):
                    self.outbox.add(message)
        except NotFoundError:
            assert source not in self.model
            return
        if self.model[source] != (status, note):
            self.expected += [(name, digest, status) for name in self.requesters.get(source, [])]
        self.model[source] = (status, note)

    @rule(source=SOURCES)
    def delete(self, source: bytes) -> None:
        try:
            self.plans.delete(hashlib.sha256(source).hexdigest())
        except NotFoundError:
            assert source not in self.model
            return
        del self.model[source]
        self.requesters.pop(source, None)

    @invariant()
    def the_register_and_its_files_are_the_model(self) -> None:
        known = {self.plans.store.read(plan.sha256): (plan.status, plan.note) for plan in self.plans.all()}
        assert known == self.model
        assert len(list((self.folder / "plans").iterdir())) == len(self.model)

    @invariant()
    def everybody_who_asked_hears_each_change_once_and_in_order(self) -> None:
        for name in ("r", "s"):
            waiting = [message for message in self.outbox.unacked(name) if isinstance(message, PlanDecision)]
            heard = [(name, message.sha256, message.status) for message in waiting]
            assert heard == [expected for expected in self.expected if expected[0] == name]

    @invariant()
    def nothing_is_approved_without_a_line(self) -> None:
        lines = audited(self.folder)
        last = {line["sha256"]: line.get("status") for line in lines if line["event"].startswith("plan-")}
        approved = {plan.sha256 for plan in self.plans.all() if plan.status is PlanStatus.APPROVED}
        assert {last[sha256] for sha256 in approved} <= {"approved"}


TestPlanLifecycle = PlanLifecycle.TestCase
TestPlanLifecycle.settings = settings(max_examples=20, stateful_step_count=20)
