"""The report as a page and as a PDF: whole, without anything from outside, and nothing empty or cut off."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pypdf
import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.table import MISSING
from fedmon.common.store.recording import Recording
from fedmon.report.charts import Charts
from fedmon.report.document.model import Document, Facts, Findings, Section, TextTable
from fedmon.report.document.page import html
from fedmon.report.document.pdf import write_pdf
from fedmon.report.document.report import build, hardware_table, user_table, write
from fedmon.report.document.summary import about, node_table, summary
from fedmon.report.findings import find
from fedmon.report.findings.case import WORDS, Case, Finding, Node, Severity
from fedmon.report.source import Source
from fedmon.report.subject import choose
from fedmon.report.totals import ClockStep
from tests.report.cases import ENDED, case, node
from tests.report.recorded_job import GIB, RecordedJob, write_job
from tests.report.tables import HOSTILE, T0, Column, recording, samples
from tests.report.tables import made as charts_of

SCRIPT = "<script>alert(1)</script>"
NO_CHARTS = Charts(span=(T0, T0 + 1), first=(), rest=())
DRAWN = (
    "job_cpu_",
    "job_memory_",
    "job_emissions",
    "job_gpu_p",
    "job_method",
    "gpu_utilization",
    "host_memory_t",
    "agent_c",
)


class Page(HTMLParser):
    """Reads a page as a browser does, and keeps what could load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.images = 0
        self.scripts: list[str] = []
        self.charts: dict[str, Any] = {}
        self.policy = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        kind = dict(attrs).get("type")
        self._open = tag if tag in ("style", "script") and kind is None else kind or ""
        self.images += tag == "img"
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                self.addresses.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_endtag(self, _tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        match self._open:
            case "script":
                self.scripts.append(data)
            case "application/json":
                self.charts = json.loads(data)
            case "":
                self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def made(path: Path, **choice: Any) -> Document:
    with Source([path]) as source:
        case = choose(source, **choice).read()
    return build(case, find(case), NO_CHARTS, made_t=T0)


def pdf_of(document: Document, path: Path) -> list[str]:
    write_pdf(document, path)
    return texts(path)


def texts(path: Path) -> list[str]:
    return [" ".join(page.extract_text().split()) for page in pypdf.PdfReader(path).pages]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A whole report with its drawings, of a few samples, so that the drawings take no time."""
    folder = tmp_path_factory.mktemp("report")
    path = write_job(folder / "job.fmr", samples=12, interval_s=50.0, series=DRAWN)
    found = write(path, html=folder / "r.html", pdf=folder / "r.pdf")
    assert found == [folder / "r.html", folder / "r.pdf"]
    return folder / "r.html", folder / "r.pdf"


def test_the_page_loads_nothing_and_runs_its_own_script_alone(written: tuple[Path, Path]) -> None:
    text = written[0].read_text()
    page = Page(text)
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    assert all(address.startswith("#") for address in page.addresses)
    assert not page.handlers
    assert not page.tags & {"iframe", "object", "embed", "link", "form", "base", "img"}
    assert not re.search(r"@import|https?://(?!github.com/leeoniya/uPlot)|fetch\(|XMLHttpRequest|eval\(", text)
    assert page.policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in page.policy
    assert "unsafe" not in page.policy
    assert "style=" not in text.partition("<script")[0]
    assert len(text) < 2_000_000


def test_charts_are_data_in_the_page(written: tuple[Path, Path]) -> None:
    page = Page(written[0].read_text())
    shown = re.findall(r'data-at="(\d+)"><figcaption><b>([^<]*)', written[0].read_text())
    titles = {title: page.charts["charts"][int(at)] for at, title in shown}

    loss = titles["Reported: loss, by step"]
    assert loss["x"] == list(range(19))
    assert loss["lines"][0]["values"][0] == 2.35
    assert titles["Job: memory"]["lines"][0]["label"] == "n1"
    assert titles["Job: memory"]["lines"][0]["values"][0] == 1.46
    assert page.charts["span"] == [T0, T0 + 550]
    assert "@media (scripting:none){.charts{display:none}}" in written[0].read_text()
    assert len(re.findall(r"<figure", written[0].read_text().partition("<details>")[0])) <= 12


def test_a_page_hatches_every_gap_of_many_nodes(tmp_path: Path) -> None:
    found = charts_of(tmp_path / "a", samples({"host_cpu_busy_ratio": [0.1, 0.2]}))
    gaps = tuple((T0 + at / 2000, T0 + (at + 0.5) / 2000, f"n{at}") for at in range(2000))

    document = build(case(node()), [], msgspec.structs.replace(found, gaps=gaps), made_t=T0)

    assert Page("".join(html(document))).charts["gaps"] == [list(gap) for gap in gaps]


def browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def in_browser(page: Path, profile: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(browser()), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
         "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=55, check=True,
    )  # fmt: skip


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_a_browser_draws_every_chart_that_is_open_under_the_pages_own_policy(
    written: tuple[Path, Path], tmp_path: Path
) -> None:
    done = in_browser(written[0], tmp_path / "profile")
    open_ones = written[0].read_text().partition("<details>")[0].count("data-at=")

    assert f'data-charts="{open_ones}"' in done.stdout
    assert done.stdout.count("<canvas") == open_ones
    assert "Refused" not in done.stderr
    assert "Uncaught" not in done.stderr
    assert ">time<" not in done.stdout  # without a cursor there is no moment


MARKS = """<script>
const marks = [], draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (...words) {
  marks.push(words[1] < this.measureText(words[0]).width ? "cut off" : words[0]);
  draw.apply(this, words);
};
</script>"""
HOVER = """<script>
document.body.style.width = "20rem";
const heights = () => [...document.querySelectorAll("figcaption")].map((one) => one.offsetHeight).join();
const before = heights(), over = document.querySelector(".u-over"), place = over.getBoundingClientRect();
over.dispatchEvent(new MouseEvent("mousemove", { clientX: place.x + place.width / 2, clientY: place.y + 9 }));
document.title = [before === heights(), document.querySelector(".now").textContent, ...marks].join(" ");
</script>"""


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_charts_stay_where_they_are_and_have_exact_marks_and_a_cursor_shows_the_reason_of_a_gap(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    columns = {"likelihood": [-1_259_000.0, -1_252_000.0] * 30, "perplexity": [125_200.0, 125_900.0] * 30}
    parts = [samples(columns, seq=seq) for seq in (0, 600)]
    write(recording(tmp_path / "gap.fmr", *parts), html=str(page))
    page.write_text(re.sub('<meta http-equiv="Content-Security[^>]*>', MARKS, page.read_text()) + HOVER)

    told = in_browser(page, tmp_path / "profile").stdout
    marks = "-1.258e+6 -1.256e+6 -1.254e+6 -1.252e+6 .* 125200 125400 125600 125800".replace("+", "[+]")
    assert re.search(rf"<title>true .*no samples for .* {marks}\b", told)


def test_a_pdf_of_a_job_is_short_and_begins_with_a_picture(tmp_path: Path) -> None:
    write_job(tmp_path / "job.fmr", nodes=("n1",), samples=120)
    write(str(tmp_path), pdf=str(tmp_path / "r.pdf"))
    reader = pypdf.PdfReader(tmp_path / "r.pdf")
    headings = [one.title for one in reader.outline if not isinstance(one, list)]

    assert len(reader.pages) <= 8
    assert len(reader.pages[0].images) >= 2
    for page in texts(tmp_path / "r.pdf"):
        assert not any(re.search(rf"{re.escape(str(heading))} page \d+ of", page) for heading in headings), page[-200:]


def test_the_first_page_says_what_it_is_about_and_what_happened(written: tuple[Path, Path]) -> None:
    first = texts(written[1])[0]

    for words in ("Job 4711", "train-resnet", "ada", "python train.py --epochs 20", "slurm, atlas", "gcc-13",
                  "exit code 0", "n1 and n2", "Findings", "GPU 1 of n1", "14.6 GiB of 16.0 GiB"):  # fmt: skip
        assert words in first, words
    assert first.index("Problem") < first.index("Look at") < first.index("Good")


def test_every_page_has_its_header_and_number_and_none_is_empty(written: tuple[Path, Path]) -> None:
    reader = pypdf.PdfReader(written[1])
    pages = texts(written[1])

    for number, (page, text) in enumerate(zip(reader.pages, pages, strict=True), start=1):
        assert (round(page.mediabox.width), round(page.mediabox.height)) == (595, 842)
        assert text.startswith("job 4711 · user ada · 2 nodes")
        assert f"page {number} of {len(pages)}" in text
        assert len(text) > 130 or len(page.images) > 0, f"page {number} is empty: {text}"


def test_what_was_not_measured_is_said_with_its_reason(written: tuple[Path, Path]) -> None:
    text = Page(written[0].read_text()).text

    assert "no permission: /sys/class/powercap/intel-rapl:0/energy_uj is for root only" in text
    assert "56 g/kWh x PUE 1.2 (FR, France, 2023, Ember)" in text
    assert text.count("Gold 6148") == 1, "hardware that is alike is told once"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_names_events_and_series_is_shown_and_nothing_else(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.fmr"
    cleaned = text.replace("\x00", "")
    told = {"job_id": text, "name": text, "started": text, "ended": text, "user": text, "command": [text, text],
            "reason": text, "method": text, "nodes": [text, "n1"], "cluster": text, "launcher": text}  # fmt: skip
    labelled = cleaned.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    columns: dict[str, Column] = {
        f'host_network_receive_bytes_total{{interface="{labelled}"}}': [0.0, 1e9, 3e9],
        f'host_network_transmit_bytes_total{{interface="{labelled}"}}': [0.0, 1e9, 3e9],
        f'perf_events_total{{group="{labelled}",event="x"}}': [1.0, 2.0, 3.0],
        f'user_value{{name="{labelled}"}}': [1.0, 2.0, 3.0],
        f"plugin_{cleaned}": [1.0, 1.0, 1.0],
    }
    with Recording(path) as store:
        store.append([samples(columns), samples({"job_processes": [1.0] * 3}, stream="job-1")])
        store.describe("n1", 1, {"hostname": text, "jobs": {"1": told}, "labels": {"env": text},
                                     "capabilities": {"host_load1": text}, "hardware": {"model": text, "os": text},
                                     "tool": {"version": text}})  # fmt: skip
        store.mark("n1", 1, "host", T0, text)

    document = made(path)
    source = "".join(html(document))
    page = Page(source)

    assert not page.tags & {"svg", "iframe"}
    assert not page.scripts
    assert page.images == 0
    assert not page.handlers
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", source)
    if text.isprintable() and len(text) < 80:
        assert " ".join(text.split()) in page.text


def test_a_pdf_of_text_in_any_script_can_be_written(tmp_path: Path) -> None:
    names = ["\U0001f525 fire", "\u4f5c\u696d", "\u0395\u03bb\u03bb", SCRIPT, "{0}{nb}"]
    path = write_job(
        tmp_path / "j.fmr", samples=2, told={"name": " ".join(names), "user": "x" * 5000}, series=("job_m",)
    )
    with Recording(path) as store:
        for at, hostile in enumerate(HOSTILE):
            store.mark("n1", 1, "host", T0 + at / 100, hostile)
    pages = pdf_of(made(path), tmp_path / "r.pdf")

    for name in names[2:]:
        assert name in " ".join(pages), name
    assert len(pages) < 8


def test_no_mark_of_a_finding_is_broken_in_a_pdf_and_a_table_has_its_title(tmp_path: Path) -> None:
    findings = tuple(Finding(name="x", severity=each, title="Title", text="Text") for each in Severity)
    table = TextTable(headers=("Node",), rows=(("a",), ("b",), ("c",))).cut(2, "node")
    section = Section(title="Findings", parts=(Findings(findings=findings), table))
    document = Document(title="Report", subtitle="-", header="-", sections=(section,))

    (page,) = pdf_of(document, tmp_path / "r.pdf")

    assert [word for word in WORDS.values() if f"{word} Title. Text" not in page] == []
    assert "The first 2 of 3 nodes Node a b" in page


def test_hardware_that_a_node_describes_oddly_is_shown_as_far_as_it_can_be(tmp_path: Path) -> None:
    card = {"model": None, "memory_bytes": 10**400}
    path = write_job(tmp_path / "j.fmr", nodes=("n1",), samples=2)
    with Recording(path) as store:
        store.describe("n1", 1, {"hardware": {"memory_bytes": 10**400, "gpus": [card]}})

    with Source(path) as source:
        (row,) = hardware_table(choose(source).read()).rows

    assert row[2:4] == (MISSING, "1 x GPU")


def test_a_table_that_is_cut_says_how_many_rows_there_are() -> None:
    nodes = node_table(case(*(node(f"n{at}", host={"host_cpu_busy_ratio": 0.5}) for at in range(201)), job=None))
    assert (len(nodes.rows), nodes.title) == (200, "The first 200 of 201 nodes")


def test_no_samples_are_a_report_too(tmp_path: Path) -> None:
    document = made(write_job(tmp_path / "j.fmr", samples=0))
    first = pdf_of(document, tmp_path / "r.pdf")[0]

    assert "No sample of the job was recorded" in first
    assert "0 %" not in first


def test_one_sample_is_a_report_that_claims_no_rate(tmp_path: Path) -> None:
    page = Page("".join(html(made(write_job(tmp_path / "j.fmr", samples=1)))))

    assert "rates, shares of time and means need two" in page.text
    assert not re.search(r"\b0 (B|J|Wh|W)\b", page.text)
    assert "Problem" not in page.text
    assert not re.search(r"[B0-9]/s\b", page.text)


def test_a_store_of_many_nodes_without_a_job_is_a_report_of_nodes(tmp_path: Path) -> None:
    batches = []
    for at in range(12):
        host = RecordedJob(samples=3, load=0.6 * at).host()
        columns = {name: values for name, values in host.items() if name.startswith("host_")}
        batches.append(samples(columns, node=f"hospital-{at}"))
    pages = pdf_of(made(recording(tmp_path / "store.fmr", *batches)), tmp_path / "r.pdf")

    assert "Report of hospital-0, hospital-1 and 10 more" in pages[0]
    assert "most on hospital-11" in pages[0]
    table = " ".join(pages).partition("CPUs busy")[2]
    assert table.index("hospital-2 ") < table.index("hospital-10 ")
    assert not any("Job 4711" in page for page in pages)


def test_long_tables_break_with_their_headers_again(tmp_path: Path) -> None:
    batches = [samples({"host_cpu_busy_ratio": [0.5, 0.6]}, node=f"node-{at:03}") for at in range(150)]
    pages = pdf_of(made(recording(tmp_path / "store.fmr", *batches)), tmp_path / "r.pdf")

    assert sum("Node CPUs busy" in page for page in pages) >= 3
    assert all(f"node-{at:03}" in " ".join(pages) for at in range(150))


def test_a_report_goes_somewhere_that_can_be_written_before_anything_is_read(tmp_path: Path) -> None:
    path = write_job(tmp_path / "j.fmr", samples=2)
    with pytest.raises(InvalidInputError, match="name a file for the report"):
        write(path)
    with pytest.raises(InvalidInputError, match=r"folder .* not found"):
        write(path, pdf=tmp_path / "nowhere" / "r.pdf")
    assert sorted(one.suffix for one in tmp_path.iterdir() if one.name != "j.fmr-wal") in (
        [".fmr"], [".fmr", ".fmr-shm"])  # fmt: skip


def test_the_report_of_nodes_names_the_jobs_that_they_saw() -> None:
    jobs, run = tuple(str(at) for at in range(12)), "01a22c43-a8d1-797f-a9de-e16d85b9d5c9"
    told = [dict(about(Case(job=None, nodes=(), jobs=seen)).rows)["Jobs"] for seen in ((run,), jobs[:2], jobs)]
    assert told == [f"{named} (--job ID reports on one)"
                    for named in ("01a22c43-a8d1", "2: 0 and 1", "12: 0, 1, 2, 3 and 8 more")]  # fmt: skip


def test_a_long_fact_has_the_width_of_the_page_and_a_long_title_says_that_it_goes_on(tmp_path: Path) -> None:
    name = "a-word " * 15
    path = write_job(tmp_path / "j.fmr", samples=2, series=("job_cpu_",), told={"name": name})
    with Source([path]) as source:
        text = summary(choose(source).read(), [], width=40)

    page = "".join(html(made(path)))
    assert re.findall("<div([^>]*)><dt>(User|Name)", page) == [(' class="wide"', "Name"), ("", "User")]
    assert text.splitlines()[:2] == ["Job 4711 (a-word a-word a-word a-word a…", "=" * 40]


def test_values_of_several_trainings_are_told_apart_and_a_last_one_that_is_not_finite(tmp_path: Path) -> None:
    trainings: dict[str, list[float | None]]
    trainings = {"": [3.0, 3.0], ',job="7"': [2.0, 2.0], ',group="a"': [1.0, None], ',group="b"': [None, None]}
    columns: dict[str, list[float | None]] = {}
    for group, values in trainings.items():
        columns[f'user_value{{name="loss"{group}}}'] = values
        columns[f'user_step{{name="loss"{group}}}'] = [6, 7]
    with Source([recording(tmp_path / "a", samples(columns, stream="user"))]) as source:
        rows = user_table(choose(source).read()).rows

    assert [row[:1] + row[2:] for row in rows] == [
        ("loss", "3", "7"), ("loss (job 7)", "2", "7"),
        ("Training a: loss", "not finite", "7"), ("Training b: loss", "not finite", "7"),
    ]  # fmt: skip


def test_a_table_tells_the_figures_of_each_node() -> None:
    network = {f'host_network_{way}_bytes_total{{interface="{interface}"}}': amount * GIB
               for way in ("receive", "transmit") for interface, amount in (("ib0", 9), ("eth0", 1))}  # fmt: skip
    seen = case(
        node("a", host={"node_energy_joules_total": 7200.0, **network}, hole_seconds=30.0),
        node("b" * 90, host={"host_cpu_busy_ratio": 0.5}),
        job=None,
    )

    nodes, text = node_table(seen), summary(seen, [], width=80)

    told = [dict(zip(nodes.headers, row, strict=True)) for row in nodes.rows]
    assert [(row["Node"], row["CPUs busy"], row["Network in / out"], row["Energy"], row["Gaps"]) for row in told] == [
        ("a", MISSING, "10.0 GiB / 10.0 GiB", "2 Wh", "30.0 s (3.0 %)"),
        ("b" * 90, "50 %", MISSING, MISSING, MISSING),
    ]
    assert re.fullmatch("b+…  +50 % .*", text.splitlines()[-1])


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node(name, tool={"clock_offset_s": ahead_s}) for name, ahead_s in (("a", 0.0), ("b", -2.0))], "2 s apart"),
        ([node("a", tool={"clock_offset_s": -0.4})], "0.4 s off that of the file server"),
        ([node("a", job={}, steps=(ClockStep(T0, -7200.0),))], "set by 7200 s while samples were taken on a"),
    ],
)
def test_how_far_clocks_differ_and_which_was_set_is_told(nodes: list[Node], told: str) -> None:
    facts = build(case(*nodes), [], NO_CHARTS, made_t=T0).sections[-1].parts[0]

    assert isinstance(facts, Facts)
    assert dict(facts.rows)["Clocks"].startswith(told)


def test_a_job_lasts_no_longer_where_the_clocks_of_its_hosts_differ() -> None:
    late = {"started": "2023-11-14T23:13:20+00:00", "ended": "2023-11-14T23:30:00+00:00"}
    nodes = [node(name, job={}, document=told, tool={"clock_offset_s": ahead_s})
             for name, told, ahead_s in (("a", ENDED, 0.0), ("b", late, 3600.0))]  # fmt: skip

    facts = dict(about(case(*nodes)).rows)
    assert (facts["Ended"], facts["Elapsed"]) == ("2023-11-14 22:30:00 UTC", "16 min 40 s")
