"""The page of a real run: it holds the report, loads nothing, and a browser draws it without an
error and with the report's numbers."""

import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from phantora_ns.config import load_cluster
from phantora_ns.page.content import content
from phantora_ns.page.excerpt import excerpt
from phantora_ns.page.render import render
from phantora_ns.page.words import LABELS, label_of
from phantora_ns.report.spent import WORDS
from tests.page.made_trace import MadeTrace
from tests.page.test_colours import palette

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "traces" / "jobs" / "steps.py"
DATA = ROOT / "phantora_ns" / "data" / "page"
LIBRARY = DATA / "echarts"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
RANKS = 4
COLD, WARM = palette("COLD"), palette("WARM")
GOOD, GOOD_IN_THE_DARK = re.findall(r"--good: (#[0-9a-f]{6})", (DATA / "page.css").read_text())


class Page(HTMLParser):
    """The elements of a page: scripts by id, what it refers to, and numbers with their origin."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.references, self.numbers, self.state = {}, [], [], None
        self.texts, self.canvases = [], 0
        self.rows = []
        """Of tables: the numbers of each row."""
        self._script = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.canvases += tag == "canvas"
        if tag == "tr":
            self.rows.append([])
        if tag == "td" and found.get("data-value"):
            self.rows[-1].append(found["data-value"])
        if tag == "html":
            self.state = found.get("data-state")
        if tag == "script":
            self._script = found.get("id", "")
            self.scripts.setdefault(self._script, "")
        self.references += [found[name] for name in ("src", "href") if found.get(name)]
        if "data-from" in found:
            self.numbers.append((found["data-from"], found.get("data-value")))

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] += data
        else:
            self.texts.append(data)


def content_of(page):
    return json.loads(page.scripts["data"])


@pytest.fixture(scope="module")
def run(phantora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    done = phantora(
        "--memory-modules",
        "--html",
        folder / "run.html",
        "--report",
        folder / "run.json",
        "--model-flop",
        "6 * 1e6 * 4*64",
        "torchrun",
        "--nnodes",
        2,
        "--nproc-per-node",
        2,
        JOB,
    )
    assert done.returncode == 0, done.stderr
    assert f"page written; {folder / 'run.html'}" in done.stderr
    assert "traces of" not in done.stderr  # nobody asked for them
    return folder


@pytest.fixture(scope="module")
def page(run):
    return Page((run / "run.html").read_text())


@pytest.mark.slow
def test_the_page_holds_the_report(run, page):
    report = json.loads((run / "run.json").read_text())
    assert content_of(page)["report"] == report
    assert content_of(page)["command"].endswith("steps.py")


@pytest.mark.slow
def test_its_sums_are_those_of_the_report(run, page):
    """Over all traced steps, kernels are what the ranks were busy with."""
    found = content_of(page)
    report = found["report"]
    assert sorted({step["rank"] for step in found["steps"]}) == list(range(RANKS))
    for step in found["steps"]:
        parts = [sum(step[group].values()) for group in ("compute", "exposed", "idle")]
        assert sum(parts) == step["end_ns"] - step["start_ns"]
    kernels = sum(row["gpu_ns"] for row in found["kernels"])
    busy = sum(rank["gpu_busy_ns"] for rank in report["ranks"])
    assert 0 < kernels <= busy * 1.05  # beside communication a kernel takes longer than alone
    assert found["waits"]["ranks"] == list(range(RANKS))
    waited = [sum(row) for row in found["waits"]["waited_ns"]]
    for rank, ns in enumerate(waited):
        assert ns <= report["ranks"][rank]["comm_wait_ns"]
    assert found["links"]["left_out"] == 0 and found["links"]["flows"]


@pytest.mark.slow
def test_the_peak_of_the_curve_is_the_allocator_s(page):
    """All steps are traced, so the trace has seen what max_memory_allocated() says at exit."""
    found = content_of(page)
    peaks = [rank["peak_allocated_bytes"] for rank in found["report"]["ranks"]]
    memory = found["memory"]
    assert memory["peak"]["bytes"] == max(peaks) == peaks[memory["rank"]]
    parts = [memory["peak"]["held_bytes"], *(count for _, count in memory["peak"]["added"])]
    assert sum(parts) == memory["peak"]["bytes"]
    reserved = [rank["peak_reserved_bytes"] for rank in found["report"]["ranks"]]
    assert max(point[2] for point in memory["points"]) == reserved[memory["rank"]]


@pytest.mark.slow
def test_it_loads_nothing_and_is_small(run, page):
    text = (run / "run.html").read_text()
    assert len(text.encode()) < 3e6
    assert all(one.startswith(("#", "data:")) for one in page.references)
    assert "default-src 'none'" in text


@pytest.mark.slow
def test_its_timeline_unpacks(page):
    packed = json.loads(gzip.decompress(base64.b64decode(page.scripts["packed"])))
    rows = {(row["rank"], row["row"]) for row in packed["rows"]}
    assert {rank for rank, _ in rows} == set(range(RANKS))
    assert any("NCCL" in row for _, row in rows) and any("host" in row for _, row in rows)


def dumped(path, tmp_path, *flags):
    """The text of the page as a browser has drawn it."""
    command = [BROWSER, "--headless", "--disable-gpu", "--no-sandbox", "--window-size=1200,9000"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [*command, *flags, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    return done.stdout


def drawn(path, tmp_path):
    """The page as a browser has drawn it."""
    return Page(dumped(path, tmp_path))


KEYS = """<script>addEventListener("load", () => setTimeout(() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
}, 4000));
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement, said = [];
  const chart = document.querySelector("[role=application]"), status = document.querySelector("[role=status]");
  for (const key of ["n", "n", "p", "ArrowDown", "ArrowUp", "+", "-", "ArrowLeft", "ArrowRight", "Home"]) {
    const event = new KeyboardEvent("keydown", { key, cancelable: true });
    chart.dispatchEvent(event);
    said.push([key, event.defaultPrevented, status.textContent]);
  }
  const opened = [...document.querySelectorAll("details")].map((one) => one.querySelectorAll("td, pre").length);
  const themes = [root.dataset.theme];
  document.getElementById("theme").click();
  themes.push(root.dataset.theme);
  dispatchEvent(new Event("beforeprint"));
  themes.push(root.dataset.theme);
  const printed = [...document.querySelectorAll("#where svg text")].map((text) => text.textContent);
  dispatchEvent(new Event("afterprint"));
  themes.push(root.dataset.theme);
  root.append(Object.assign(document.createElement("script"),
    { type: "application/json", id: "tried",
      textContent: JSON.stringify({ said, themes, printed, opened, reached: chart.tabIndex }) }));
}, 5000));</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_used_by_keyboard_in_light_and_dark_and_printed_in_light(run, tmp_path, dark):
    begin, _, end = (run / "run.html").read_text().rpartition("</body>")
    (tmp_path / "run.html").write_text(begin + KEYS + end)
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    page = Page(dumped(tmp_path / "run.html", tmp_path, scheme))
    assert page.state == "ready"
    tried = json.loads(page.scripts["tried"])
    keys, taken, texts = zip(*tried["said"], strict=True)
    assert tried["reached"] == 0 and all(taken)
    by_key = list(zip(keys, texts, strict=True))
    assert all(text.startswith("rank 0, ") for text in texts)
    first, second, back, below, above, *moved = [text for _, text in by_key]
    assert first != second and back == first and below != back
    row = re.compile(r"rank \d+, [^:]+")
    assert row.match(below)[0] != row.match(back)[0] == row.match(above)[0]
    assert set(moved) == {above}  # to zoom and to pan chooses nothing else
    assert len(tried["opened"]) > 5 and all(tried["opened"])  # they are filled when they are opened
    own, other = ("dark", "light") if dark else ("light", "dark")
    assert tried["themes"] == [own, other, "light", other]
    named = {
        label_of(group, kind)
        for step in content_of(page)["steps"]
        for group in ("exposed", "idle")
        for kind in step[group]
    }
    assert named and named <= set(tried["printed"])
    pages = [text for text in tried["printed"] if re.fullmatch(r"\d+/\d+", text)]
    assert not pages  # of the legend; it has some on the screen


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
def test_a_print_has_the_colours_of_the_light_theme(run, tmp_path):
    """All its charts are in it, seen or not."""
    command = [
        BROWSER,
        "--headless",
        "--disable-gpu",
        "--no-sandbox",
        "--virtual-time-budget=20000",
    ]
    subprocess.run(
        [
            *command,
            "--blink-settings=preferredColorScheme=0",  # dark
            f"--user-data-dir={tmp_path / 'browser'}",
            f"--print-to-pdf={tmp_path / 'run.pdf'}",
            (run / "run.html").as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    fills = filled((tmp_path / "run.pdf").read_bytes())
    assert {*COLD[:3], *WARM[:2], *palette("MIXED")[:3], *palette("HOST"), GOOD} <= fills
    assert GOOD_IN_THE_DARK not in fills


def filled(pdf):
    """The colours that are filled with in a PDF."""
    found = set()
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.S):
        with contextlib.suppress(zlib.error):
            for channels in re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) rg", zlib.decompress(stream)):
                found.add("#" + "".join(f"{round(255 * float(one)):02x}" for one in channels))
    return found


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
def test_a_browser_draws_it_with_the_numbers_of_the_report(run, page, tmp_path):
    shown = drawn(run / "run.html", tmp_path)
    assert shown.state == "ready", " ".join(shown.texts)[:2000]
    found = content_of(page)
    assert len(shown.numbers) > 15
    assert shown.canvases == 1  # the timeline, which is unpacked later than the rest
    for path, value in shown.numbers:
        expected = found
        for key in path.split("."):
            expected = expected[int(key)] if isinstance(expected, list) else expected.get(key)
        if expected is None:
            assert value is None
        else:
            assert float(value) == expected
    shown_paths = {path for path, _ in shown.numbers}
    assert {"report.step.mean_ns", "report.arithmetic.hfu", "report.arithmetic.mfu"} <= shown_paths
    assert found["report"]["arithmetic"]["model_flop"] == 6 * 1e6 * 4 * 64
    text = " ".join(shown.texts)
    assert any(path == "report.memory_held.peak_bytes" for path, _ in shown.numbers)
    for row in found["held"]["layers"]:
        assert row[0] in text and (row[1] or "not known") in text
    for answer in found["answers"]:
        assert answer["answer"] in text and answer["detail"] in text


def numbers_in(value):
    """All numbers of JSON data."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(one)
    elif isinstance(value, int | float):
        yield float(value)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
def test_every_number_of_a_table_is_one_of_the_page_s_data(run, page, tmp_path):
    """Or follows from them: a share of what is in its own row, a mean of its row, a length of a step, the mean of its
    parts over the counted steps, or all that a rank waited."""
    found = content_of(page)
    begin, _, end = (run / "run.html").read_text().rpartition("</body>")
    (tmp_path / "run.html").write_text(begin + OPEN + end)
    rows = [list(map(float, row)) for row in drawn(tmp_path / "run.html", tmp_path).rows if row]
    known = {*numbers_in(found), *(step["end_ns"] - step["start_ns"] for step in found["steps"])}
    known |= {sum(row) for row in found["waits"]["waited_ns"]}
    for rank in range(RANKS):
        counted = [
            step
            for step in found["steps"]
            if step["rank"] == rank and step["number"] in found["counted_steps"]
        ]
        for group in ("compute", "exposed", "idle"):
            for kind in {kind for step in counted for kind in step[group]}:
                mean = sum(step[group].get(kind, 0) for step in counted) / len(counted)
                known.add(float(int(mean + 0.5)))
    wholes = {found["cluster"]["gpu_memory_bytes"], found["memory"]["peak"]["bytes"]}
    wholes.add(found["report"]["memory_held"]["peak_bytes"])
    strange = []
    for row in rows:
        derived = {int(a / b + 0.5) for a in row for b in row if b}
        derived |= {a / whole for a in row for whole in wholes}
        strange += [(value, row) for value in row if value not in known | derived]
    assert len(rows) > 60 and strange == []


OPEN = """<script>addEventListener("load", () => setTimeout(() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
}, 4000));</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
def test_a_run_without_traces_is_drawn_too(tmp_path):
    (tmp_path / "bare.html").write_text(render(bare(), "true on 1 GPU"))
    shown = drawn(tmp_path / "bare.html", tmp_path)
    assert shown.state == "ready", " ".join(shown.texts)[:2000]


@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
@pytest.mark.parametrize("mfu", [None, 0.398, "unknown"])
def test_mfu_is_shown_beside_hfu_if_it_was_asked_for(tmp_path, mfu):
    report = bare()["report"]
    uncounted = {"launches": 0, "time_share": 0.0, "kernels": []}
    told = {"model_flop": None, "mfu": None, "no_mfu": None}
    if mfu is not None:
        told["model_flop"] = 1e12
        told["mfu"], told["no_mfu"] = (None, "no peak") if mfu == "unknown" else (mfu, None)
    report["arithmetic"] = {"flop": {"bf16": 10**12}, "hfu": 0.426, "no_hfu": None, **told}
    report["arithmetic"]["uncounted"] = uncounted
    lengths = dict.fromkeys(("mean_ns", "least_ns", "most_ns"), 1_000_000)
    report["step"] = {"rank": 0, "count": 4, "settled": 2, **lengths}
    found = content(report, load_cluster("h200-1x8", 1, 1), ["true"], {})
    (tmp_path / "made.html").write_text(render(found, "a"))
    shown = drawn(tmp_path / "made.html", tmp_path)
    text = " ".join(shown.texts)
    assert shown.state == "ready", text[:2000]
    numbers = dict(shown.numbers)
    assert float(numbers["report.arithmetic.hfu"]) == 0.426
    assert ("report.arithmetic.mfu" in numbers) == ("(MFU)" in text) == (mfu == 0.398)
    assert ("MFU is not known: no peak." in text) == (mfu == "unknown")
    if mfu == 0.398:
        assert (
            float(numbers["report.arithmetic.mfu"]) == mfu
            and "39.8% of the GPU's peak (MFU)" in text
        )


def bare():
    """The content of a run in which nothing used a GPU."""
    report = {
        "schema": 2, "arithmetic": None,
        "world_size": 1, "nodes": 1, "gpus_per_node": 1, "ranks": [], "simulated_ns": 0, "wall_s": 1.5,
        "software": None, "nccl": None, "kernel_time_share": {}, "recorded_elsewhere": None,
        "gpu_clock": None, "scaled": None,
        "host_time": {"mode": "auto", "time_share": {}, "measured": {"call_sites": 3}},
        "values": {"unknown_reads": 0, "chosen": 0}, "leading": None, "messages": 3,
        "bad_messages": 0, "revised": 0, "expired_values": 0, "unsupported_calls": {"cudaNew": 2},
        "warnings": {"</script><b>x": 1}, "guesses": {"something": 7}, "errors": [], "killed": [],
        "exit_code": 1, "failed_by": "job", "ended_by": None,
    }  # fmt: skip
    return content(report, load_cluster("h200-1x8", 1, 1), ["true"], {})


def test_without_scripts_the_page_says_the_answers():
    """A reader without JavaScript, such as a server's, has the text that is outside of scripts."""
    text, found = render(bare(), "a"), bare()["answers"]
    shown = " ".join(Page(text).texts)
    assert len(found) == 4
    for answer in found:
        assert all(answer[part] in shown for part in ("question", "answer", "detail"))


def traced(tmp_path, steps, told, outlasts):
    """The content of a run of one rank with these traced steps of 1 ms; `told`: count and settled steps of the
    report. `outlasts`: the GPU is half a step behind its host."""
    made, late = MadeTrace(), 500_000 if outlasts else 0
    for number in steps:
        begin = number * 1_000_000
        made.step(number, begin, begin + 1_000_000)
        made.kernel("ampere_gemm", begin + late, begin + late + 900_000, launched=begin + 1)
    report = bare()["report"]
    if told is not None:
        lengths = dict.fromkeys(("mean_ns", "least_ns", "most_ns"), 1_000_000)
        report["step"] = {"rank": 0, "count": told[0], "settled": told[1], **lengths}
    excerpts = {0: excerpt(made.write(tmp_path / "rank-0.json.gz"))}
    return content(report, load_cluster("h200-1x8", 1, 1), ["true"], excerpts)


@pytest.mark.parametrize(
    "steps, told, outlasts, counted, said",
    [
        # --trace-steps 2:4 of a job of four steps; the page said "steps 2 to 2"
        ((2, 3), (3, 2), True, [2], "of traced step 2, counted"),
        ((2, 3), (3, 2), False, [2, 3], "of traced steps 2 to 3, counted"),
        # both are settled, however few were traced; the page left out the first
        ((10, 11, 12), (40, 37), True, [10, 11], "of traced steps 10 to 11, counted"),
        ((0, 1, 2), (40, 37), True, [1], "of traced step 1, counted"),
        (range(12), (11, 8), True, [*range(4, 11)], "of traced steps 4 to 10, counted"),
        (range(12), None, True, [*range(4, 11)], "of traced steps 4 to 10, counted"),
        ((0,), None, False, [0], "of traced step 0, counted"),
    ],
)
def test_the_notes_say_of_which_steps_the_numbers_are(
    tmp_path, steps, told, outlasts, counted, said
):
    page = traced(tmp_path, steps, told, outlasts)
    assert page["counted_steps"] == counted
    notes = " ".join(page["notes"])
    assert said in notes
    assert (f"Step {steps[-1]} was traced too, but counts nowhere" in notes) == outlasts
    assert ("settled steps of the whole run" in notes) == (told is not None)


@pytest.mark.parametrize(
    "clock, short, long",
    [
        ({"mean_mhz": 1598.4, "held_share": 0.95}, ", at the power limit", "95% of the time; it is 1598 MHz"),
        ({"mean_mhz": 1598.4, "held_share": 0.4}, "", ""),
        (None, "", ""),
    ],
)  # fmt: skip
def test_the_fourth_answer_names_what_the_gpu_computes_and_its_power_limit(
    tmp_path, clock, short, long
):
    made = MadeTrace()
    made.step(1, 0, 1_000_000)
    made.kernel("ampere_gemm", 0, 1_000_000, launched=0)
    excerpts = {0: excerpt(made.write(tmp_path / "rank-0.json.gz"))}
    report = bare()["report"] | {"gpu_clock": clock, "exit_code": 0, "gpu": None}
    answer = content(report, load_cluster("h200-1x8", 1, 1), ["true"], excerpts)["answers"][3]
    assert answer["answer"] == f"Kernels: matrix products{short}"
    assert "100% of the step goes into matrix products." in answer["detail"]
    assert (long in answer["detail"]) and ("MHz" in answer["detail"]) == bool(short)


def test_the_page_calls_parts_of_a_step_as_the_terminal_does():
    (found,) = re.findall(r"^const LABELS = (.*);$", render(bare(), "a"), re.M)
    assert json.loads(found) == LABELS and LABELS["compute"] == WORDS
    scripts = "".join(path.read_text() for path in DATA.glob("*.js"))
    assert not [
        words for group in LABELS.values() for words in group.values() if f'"{words}"' in scripts
    ]


def test_a_text_of_the_job_cannot_end_the_script():
    text = render(bare(), "<b>& 1 GPU")
    assert "<b>x" not in text and "&lt;b&gt;&amp; 1 GPU" in text
    assert content_of(Page(text))["report"]["warnings"] == {"</script><b>x": 1}


def test_a_run_that_its_user_ended_is_no_failure():
    found = bare()["report"] | {"exit_code": 130, "failed_by": None, "ended_by": "SIGINT"}
    made = content(found, load_cluster("h200-1x8", 1, 1), ["true"], {})
    said = "The run was ended by Ctrl-C before the end of a step"
    assert any(entry["what"] == said for entry in made["advice"])
    assert not any(entry["kind"] == "error" for entry in made["advice"])


def test_everything_doubtful_is_listed_with_what_to_do():
    listed = bare()["advice"]
    assert all(one["cure"] and one["what"] for one in listed)
    texts = [one["what"] for one in listed]
    assert {"cudaNew", "</script><b>x", "something"} <= set(texts)
    assert "Host times were measured in this run" in texts
    assert listed[0]["kind"] == "error" and "exit code 1" in listed[0]["what"]


def test_the_same_run_gives_the_same_page():
    assert render(bare(), "a") == render(bare(), "a")


def test_the_chart_library_is_the_released_file():
    source = tomllib.loads((LIBRARY / "SOURCE.toml").read_text())
    data = (LIBRARY / "echarts.min.js").read_bytes()
    assert hashlib.sha256(data).hexdigest() == source["sha256"]
    assert re.search(rb'version="([\d.]+)"|version:"([\d.]+)"', data)
    assert source["version"].encode() in data
    assert {"LICENSE", "NOTICE"} <= {path.name for path in LIBRARY.iterdir()}
