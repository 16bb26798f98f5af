"""Descent is told from numbers and parents alone."""

from __future__ import annotations

from fedmon.node.collectors.job.members import descended
from fedmon.node.collectors.job.process import Birth


def births(**parents: int) -> list[Birth]:
    return [Birth(int(pid[1:]), parent, 1, 1, 1) for pid, parent in parents.items()]


def test_all_generations_are_found_with_parents_before_their_children() -> None:
    processes = births(p9=8, p8=7, p7=1, p5=1)

    found = [each.pid for each in descended([7], processes)]

    assert found == [8, 9]


def test_a_root_below_another_is_not_told_as_its_descendant() -> None:
    processes = births(p7=1, p8=7, p9=8)

    found = [each.pid for each in descended([7, 8], processes)]

    assert found == [9]


def test_numbers_that_were_given_anew_cannot_make_it_go_round() -> None:
    processes = births(p7=9, p8=7, p9=8)

    found = [each.pid for each in descended([7], processes)]

    assert found == [8, 9]
