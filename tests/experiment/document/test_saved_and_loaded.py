"""Whatever an experiment went through, what is saved of it can be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.experiment import (
    ExperimentController,
    QuorumFailures,
    ResourceManager,
    SFormats,
)
from fedmon.experiment.errors import InvalidAttributeValueError
from tests.experiment.own_types import START, STARTED, experiment, own, plain


def groups(ec: ExperimentController) -> list[tuple[tuple[int, ...], int | None]]:
    """Return group and quorum of each condition."""
    return [(one.group, one.at_least) for each in ec.snapshot.resources.values() for _, one in each.conditions]


def loaded(ec: ExperimentController, tmp_path: Path) -> list[tuple[tuple[int, ...], int | None]]:
    found = []
    for kind in SFormats:
        with ExperimentController.load(ec.save(format=kind), local_dir=tmp_path / "again") as again:
            found.append(groups(again))
    assert found[0] == found[1]
    return found[0]


def test_nobody_waits_for_who_was_taken_out(ec: ExperimentController, tmp_path: Path) -> None:
    plain(ec, 4)
    ec.register_condition(1, START, [2, 3, 4], STARTED, at_least=3)
    ec.register_condition(2, START, [3], STARTED)

    ec.unregister_condition(1, 4)
    ec.remove_resource(3)

    assert loaded(ec, tmp_path) == [((2,), 1)]


def test_a_format_that_there_is_not_is_refused_and_the_other_one_is_read(
    ec: ExperimentController, tmp_path: Path
) -> None:
    plain(ec, 4)
    path = Path(ec.save())
    kept = path.rename(tmp_path / "experiment.kept")

    with pytest.raises(InvalidInputError, match="'nope' is not a format"):
        ExperimentController.load(path, "nope")
    with pytest.raises(InvalidInputError, match="xml, toml"):
        ExperimentController.load(path, ["xml"])  # type: ignore[arg-type] # what a caller without types may do
    with pytest.raises(InvalidInputError, match=r"must end in \.xml"):
        ExperimentController.load(kept)
    with ExperimentController.load(kept, SFormats.XML) as again:
        assert len(again.resources) == 4


def test_a_file_of_nepi_runs_where_its_folder_cannot_be_made_and_without_its_twenty_threads(tmp_path: Path) -> None:
    path = tmp_path / "nepi.xml"
    (tmp_path / "file").touch()
    path.write_text(
        f'<experiment exp_id="e" local_dir="{tmp_path}/file/no" nthreads="20" run_id="20140301120000000001">'
        '<rms><rm guid="1" rtype="test::Plain" state="0"/></rms></experiment>'
    )

    with ExperimentController.load(path, local_dir=tmp_path / "here") as ec:
        assert (ec.local_dir, ec.resources) == (str(tmp_path / "here"), [1])
        assert ec.nthreads is None
    with ExperimentController("e", tmp_path, nthreads=7) as few:
        saved = [few.save(), few.save(format="toml")]
    for file in saved:
        with ExperimentController.load(file) as again:
            assert again.nthreads == 7
    assert "max_running = 7" in Path(saved[1]).read_text()


def test_what_failures_mean_is_saved_loaded_and_known_to_who_takes_the_run_up(tmp_path: Path) -> None:
    manager = QuorumFailures(2, [1, 2, 3])
    manager.add(1, rtype="test::Plain")
    with experiment(tmp_path / "first", fm=manager) as ec:
        plain(ec, 4)
        description = ec.describe()
        paths = [ec.save(format=kind) for kind in SFormats]
    assert description.failures is not None

    for path in paths:
        ec = ExperimentController.load(path, local_dir=tmp_path / "again")
        assert isinstance(ec.fm, QuorumFailures)
        assert ec.fm.quorums == manager.quorums
        assert ec.describe().failures == description.failures
        run_dir = ec.run_dir
        ec.give_up()  # as a process that dies
        with ExperimentController.reconnect(run_dir) as taken:
            assert isinstance(taken.fm, QuorumFailures)
            assert taken.fm.quorums == manager.quorums


def test_a_load_that_fails_registers_no_resource_that_has_a_wrong_value(tmp_path: Path) -> None:
    seen = []

    def do_release(self: ResourceManager) -> None:
        seen.append(self.guid)
        self.set_released()

    released = own("saved::Released", do_release=do_release)
    with experiment(tmp_path / "first", released) as ec:
        ec.register_resource("saved::Released")
        ec.register_resource("saved::Released", critical=False)
        path = Path(ec.save(format="toml"))
    text = path.read_text()
    assert "critical = false" in text
    path.write_text(text.replace("critical = false", 'critical = "maybe"'))
    seen.clear()

    with pytest.raises(InvalidAttributeValueError, match="critical"):
        ExperimentController.load(path, local_dir=tmp_path / "again")

    assert seen == [1]
