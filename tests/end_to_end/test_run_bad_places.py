"""Where a run's data come from: hostile addresses are never connected to, and what replaced a dataset is not given."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.ids import new_id
from fedmon.common.settings.values import RepositorySettings, ResearcherSettings
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.errors import RunFailedError
from tests.end_to_end.bad_runs import Ward, ward
from tests.support.brokers import Broker
from tests.support.hostile_urls import HOSTS, METADATA_HOSTS, URLS, Sentinel
from tests.support.http_server import Answers, LoopbackServer
from tests.support.node_process import CELLS
from tests.support.raw_researcher import RawResearcher
from tests.support.running_node import PLAN, RunningNode
from tests.support.waiting import wait_until

CONTENT = b'{"text":"x"}'
DIGEST = hashlib.sha256(CONTENT).hexdigest()
READS = """
path = context.dataset.path
if path.is_dir():
    return {"folder": sorted(os.listdir(path))}
return {"text": path.read_text(), "rows": len(list(context.dataset.rows()))}
"""
REDIRECTS = (301, 302, 303, 307, 308)


class Bends(Answers):
    """Answers ``/files/STATUS/NUMBER`` with that status and the location of that number."""

    locations: tuple[str, ...] = ()
    asked: list[str]

    def do_GET(self) -> None:  # noqa: N802  # as http.server has it
        """Bend who asks to another place, by every means that a server has."""
        _, _, status, number = self.path.split("/")
        location = self.locations[int(number)]
        type(self).asked.append(self.path)
        headers = dict.fromkeys(("Location", "Content-Location", "URI"), location)
        headers |= {"Refresh": f"0; url={location}", "Link": f"<{location}>; rel=canonical"}
        self.reply(int(status), headers=headers)


@pytest.fixture(scope="module")
def sentinel() -> Iterator[Sentinel]:
    with Sentinel() as listening:
        yield listening


@pytest.fixture(scope="module")
def bends(sentinel: Sentinel) -> Iterator[str]:
    """A server that bends; returns its address, below which nodes and researchers are allowed to fetch."""
    names = [url for url in sentinel.aimed() if url.startswith("http") and url.isascii() and url.isprintable()]
    Bends.locations, Bends.asked = tuple(names[::2]), []
    with LoopbackServer(Bends) as server:
        yield f"{server.url}files/"


def allowed(bends: str, port: int) -> list[str]:
    """Return what an owner allowed who believes what a name says."""
    named = [f"{scheme}://{host}:{port}/" for host in HOSTS for scheme in ("http", "https")]
    metadata = ["http://169.254.169.254/", "https://169.254.169.254/", *(f"https://{each}/" for each in METADATA_HOSTS)]
    return [bends, *named, *metadata]


@pytest.fixture(scope="module")
def place(
    lasting_broker: Broker, sentinel: Sentinel, bends: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ward]:
    """A node on a machine where names lead where an attacker wants them to."""
    hosts = [f"{address} {' '.join(HOSTS)}\n" for address in ("127.0.0.1", "::1")]
    hosts.append(f"169.254.169.254 {' '.join(METADATA_HOSTS)}\n")
    with ward(
        tmp_path_factory.mktemp("west") / "west",
        lasting_broker,
        {"reads": READS},
        job_output=True,
        hosts="\n" + "".join(hosts),
        runs={"max_jobs": 256},
        repository={"allowed_urls": allowed(bends, sentinel.port)},
    ) as made:
        yield made


def bent(bends: str) -> list[str]:
    """Return an address for each redirect to each place."""
    number = len(Bends.locations)
    return [f"{bends}{REDIRECTS[each % len(REDIRECTS)]}/{each}" for each in range(number)]


def test_no_inputs_are_fetched_from_where_a_researcher_must_not_send_a_node(
    place: Ward, sentinel: Sentinel, bends: str
) -> None:
    # given runs whose inputs lie there
    urls = {new_id(): url for url in [*sentinel.aimed(), *bent(bends)]}
    with RawResearcher(place.broker) as researcher:
        wait_until(lambda: researcher.answered("pong"), what="the node")
        heard = Heard(researcher)

        # when the node is asked for them
        for job_id, url in urls.items():
            parcel = {"format": "json", "sha256": DIGEST, "size_bytes": len(CONTENT), "url": url}
            researcher.send(researcher.message("run", job_id=job_id, sha256=place.bad, inputs=parcel))
            heard.all(0)
        wait_until(lambda: heard.all(len(urls)), what="the end of every job")
        ends = {url: heard.jobs[job_id] for job_id, url in urls.items()}

    # then each has an end that says so, and nobody was connected to but who had the right to bend
    assert {job["state"] for job in ends.values()} == {"not-started"}
    assert all(job["reason"].startswith("its inputs were not fetched: ") for job in ends.values())
    assert all(place.told(job_id) == [("run", ""), ("run-outcome", "not-started")] for job_id in list(urls)[::10])
    assert sentinel.connections() == 0
    assert len(Bends.asked) == len(Bends.locations) >= 25
    assert len(URLS) >= 25
    assert place.serves()


class Heard:
    """The jobs of the outcomes that came, by their ids; each is acknowledged, or all would come again with the next."""

    def __init__(self, researcher: RawResearcher) -> None:
        self._researcher = researcher
        self._read = 0
        self._acknowledged: set[str] = set()
        self.jobs: dict[str, Any] = {}

    def all(self, number: int) -> bool:
        """Tell whether so many jobs are over."""
        came = self._researcher.replies[self._read :]
        self._read += len(came)
        outcomes = {each["id"]: each["job"] for each in came if each["command"] == "job-outcome"}
        new = sorted(outcomes.keys() - self._acknowledged)
        if new:
            self._acknowledged.update(new)
            self._researcher.send(self._researcher.message("ack", ids=new))
        self.jobs |= {job["job_id"]: job for job in outcomes.values()}
        return len(self.jobs) >= number


def test_no_result_is_fetched_from_where_a_node_must_not_send_a_researcher(
    lasting_broker: Broker, sentinel: Sentinel, bends: str, tmp_path: Path
) -> None:
    # given a node that says of its results that they lie at such addresses
    Bends.asked.clear()
    repository = RepositorySettings(allowed_urls=tuple(allowed(bends, sentinel.port)))
    settings = ResearcherSettings(
        id="alice", broker=lasting_broker.settings, folder=tmp_path, repository=repository, timeout_s=30.0
    )
    urls = [*sentinel.aimed(), *bent(bends)]
    with RunningNode(lasting_broker.port, "liar") as liar, Federation(settings=settings) as federation:
        wait_until(lambda: "liar" in federation.nodes(), what="the node")
        runs = {url: federation.run(f"sha256:{PLAN}", nodes=["liar"]) for url in urls}
        for url, handle in runs.items():
            liar.end(
                handle.job_id,
                result={"format": "json", "sha256": DIGEST, "size_bytes": len(CONTENT), "url": url},
            )

        # when the researcher wants them
        dropped = []
        for handle in runs.values():
            with pytest.raises(RunFailedError) as caught:
                handle.result(timeout_s=60)
            dropped.append(caught.value.failed["liar"])

    # then it is told that they were dropped
    assert all(reason.startswith("its result was dropped: ") for reason in dropped)
    assert sentinel.connections() == 0
    assert len(Bends.asked) == len(Bends.locations)


def _linked_to(target: str) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return put


def _linked_to_the_nodes_keys(path: Path) -> None:
    path.unlink()
    path.symlink_to(next(path.parents[2].glob("west/*.sqlite*"), path.parents[2] / "west" / "node.toml"))


def _below_a_link(path: Path) -> None:
    before = path.parent.rename(path.parent.with_name("before"))
    path.parent.symlink_to(before)


def _socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


def _replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


PUT: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "nothing": (Path.unlink, "refused", "its path leads to nothing"),
    "a link to /etc/passwd": (_linked_to("/etc/passwd"), "refused", "now leads through a link"),
    "a link to the node's own files": (_linked_to_the_nodes_keys, "refused", "now leads through a link"),
    "a link to the root": (_linked_to("/"), "refused", "now leads through a link"),
    "a link to itself": (_linked_to("table.csv"), "refused", "its path leads to nothing"),
    "a folder that is a link": (_below_a_link, "refused", "now leads through a link"),
    "a pipe": (lambda path: _replaced(path, os.mkfifo), "refused", "as a dataset of type 'csv' now"),
    "a socket": (_socket, "refused", "as a dataset of type 'csv' now"),
    "a folder": (lambda path: _replaced(path, os.mkdir), "refused", "as a dataset of type 'csv' now"),
    "an empty file": (lambda path: path.write_text(""), "failed", "is an empty file"),
    "noise": (lambda path: path.write_bytes(bytes(range(256))), "failed", "UnicodeDecodeError"),
    "what nobody may read": (lambda path: path.chmod(0), "", ""),
}


@pytest.mark.parametrize("what", PUT)
def test_what_is_put_in_the_place_of_a_dataset_is_given_to_no_plan(place: Ward, what: str) -> None:
    put, state, part = PUT[what]
    folder = place.folder.parent / f"data-{new_id()[-12:]}" / "tables"
    folder.mkdir(parents=True)
    path = folder / "table.csv"
    path.write_text(CELLS)
    tag = folder.parent.name
    place.offer(path, tag)
    put(path)

    ended = place.trial("reads", tags=[tag])

    # root may read all, and gives a plan what root may not: then the plan fails; who may not read it refuses
    place.check(ended, state or ended.state, part)
    assert ended.values is None
    assert str(folder) not in ended.reason or state == "failed"


@pytest.mark.parametrize(
    "name", ["a b.csv", "täble \u202e😀.csv", "a\nb.csv", "';$(touch x)`\".csv", "--bind.csv", "x" * 250]
)
def test_a_dataset_of_any_name_is_given(place: Ward, name: str) -> None:
    folder = place.folder.parent / f"data-{new_id()[-12:]}"
    folder.mkdir()
    path = folder / name
    path.write_text(CELLS)
    place.offer(path, folder.name)

    ended = place.trial("reads", tags=[folder.name])

    place.check(ended, "succeeded")
    assert ended.values == {"text": CELLS, "rows": 3}
