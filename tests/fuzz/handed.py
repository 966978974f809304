"""Why it exists: what people hand to commands besides clusters, databases and traces: recorded values, exported
kernel times, reports and pages, logs of nccl-tests, sweeps, host files. Good ones, and all that is done with one."""

import json
import random
import tempfile
from pathlib import Path

from phantora_ns.api.report import Report
from phantora_ns.calibrate.nccl_log import read_log
from phantora_ns.calibrate.samples import measured
from phantora_ns.kernels.database import interchange
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.writer import save
from phantora_ns.launch.command.deepspeed import node_count, parse_deepspeed
from phantora_ns.launch.record import recorded_values
from phantora_ns.launch.record.recorded_values import Value
from phantora_ns.page import render
from phantora_ns.page.compare import compare, load
from phantora_ns.page.compare_text import text
from phantora_ns.protocol import (
    VALUE_RECORD_FILE,
    VALUE_TABLE_HEADER,
    ValueRecord,
    ValueTableHeader,
)
from phantora_ns.sweep.spec import Given, read_spec
from tests.calibrate.nccl_tests_log import FORMATS, Log
from tests.fuzz.changes import change_bytes, change_json, change_toml
from tests.page.test_compare import report
from tests.page.test_page import bare

# ---- recorded values ----


def values() -> list[bytes]:
    """Of two ranks."""
    found = [
        Value(f"{operator} [8, 4] k=2", rank, occurrence, 4, bytes(8 * operator_number))
        for operator_number, operator in enumerate(("aten::topk", "copy", "aten::argmax"))
        for rank in range(2)
        for occurrence in range(3)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.values"
        recorded_values.write(path, found, {"command": ["torchrun", "train.py"], "cwd": "/"})
        return [path.read_bytes()]


def change_values(source: random.Random, content: bytes) -> bytes:
    """Bytes, or what is said of the job, with its length."""
    if source.random() < 0.8 or len(content) < VALUE_TABLE_HEADER.size:
        return change_bytes(source, content)
    header = ValueTableHeader.unpack(content)
    meta = source.choice((b"", b"[]", b"[" * 5000, b"9" * 5000, b"\xff", b'{"command": {}}'))
    return (
        header._replace(meta_bytes=len(meta)).pack()
        + content[VALUE_TABLE_HEADER.size : header.meta_offset]
        + meta
    )


def use_values(path: Path) -> None:
    """Replays them, and puts another rank's beside them."""
    recorded_values.check(f"replay:{path}", "h200", [], "/")
    with tempfile.TemporaryDirectory() as folder:
        record = ValueRecord(4, 0, 1, 6).pack() + b"a" + b"data"
        (Path(folder) / VALUE_RECORD_FILE).write_bytes(record)
        recorded_values.keep(Path(folder), path, 7, {})
    assert recorded_values.read(path)[1][-1].data is not None


# ---- kernel times as text ----


def exports(databases: list[bytes]) -> list[bytes]:
    """Of databases."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(databases):
            path = Path(folder) / f"{number}.sqlite"
            path.write_bytes(content)
            with Database.open(path) as database:
                found.append("".join(interchange.export_lines(database)).encode())
    return found


def use_export(path: Path) -> None:
    """Makes a database of them, which must give the same text."""
    with open(path, encoding="utf-8") as lines:
        gpu, runs = interchange.read_lines(lines, path)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"{path.name}.sqlite"
        save(out, gpu, runs)
        with Database.open(out) as database:
            again = list(interchange.export_lines(database))
    assert interchange.read_lines(again, path) == (gpu, runs)


# ---- reports and pages ----


def reports() -> list[bytes]:
    """A report, and a page."""
    steps = [
        {"rank": 0, "number": n, "start_ns": 100 * n, "end_ns": 100 * n + 100}
        | {"compute": {"gemm": 60}, "exposed": {"all_gather": 30}, "idle": {"host": 10}}
        for n in range(3)
    ]
    times = {"kernel_time_ns": {"gemm": {"exact": 60, "guess": 1}}}
    page = bare() | {"report": report(**times), "counted_steps": [1, 2], "steps": steps}
    return [json.dumps(report(**times)).encode(), render.render(page, "a run").encode()]


def change_report(source: random.Random, content: bytes) -> bytes:
    """The report, or the data in a page."""
    found = render._DATA.search(content.decode())
    if found is None:
        return change_json(source, content)
    whole, (begin, end) = content.decode(), found.span(1)
    return (whole[:begin] + change_json(source, found[1].encode()).decode() + whole[end:]).encode()


def use_report(path: Path) -> None:
    """Compares it with a good one and itself, and sums it up."""
    run, good = load(path), load(path.with_name("good.report"))
    for runs in ([run, run], [run, good], [good, run, run]):
        found = compare(runs)
        json.dumps(found)
        "\n".join(text(found))
        render.render_comparison(found)
    Report.load(path).summary()


# ---- logs of nccl-tests ----


def logs() -> list[bytes]:
    """Of each form, one with two groups of ranks."""
    times = {1 << power: (20.0 + 2**power / 3e5, 21.5 + 2**power / 3e5) for power in (10, 20, 30)}
    plain = [Log("all_reduce", 2, 4, format=form).text(times) for form in FORMATS]
    grouped = Log("sendrecv", 1, 4, groups=(0, 0, 1, 1)).text(times)
    hypercube = Log("hypercube", 1, 8).text(times)
    return [one.encode() for one in (*plain, grouped, hypercube)]


def use_log(path: Path) -> None:
    """What the fit begins with."""
    measured(read_log(path))


# ---- sweeps ----

SWEEP = """
command = "torchrun --nproc-per-node {gpus} train.py --batch {batch}"
work = "batch * gpus * 1024 tokens"
where = ["batch * gpus <= 64", "max(batch, gpus) < 40 or not tp == 2"]
price = { h200 = 2.5, b200 = 4 }
[options]
cluster = "h200-rail"
set = { "network.nic_latency" = "1 us" }
[environment]
SIZE = "{gpus}"
[grid]
gpus = [1, 2]
batch = [8, 16]
--tp = [1, 2]
set.gpu = ["h200", "b200"]
env.MODE = ["fast", false]
[[point]]
gpus = 4
batch = 1
option.nnodes = 2
"""


def change_sweep(source: random.Random, content: bytes) -> bytes:
    """A line, or an expression."""
    if source.random() < 0.8:
        return change_toml(source, content)
    lines = content.decode(errors="surrogateescape").splitlines()
    lines = [line for line in lines if not line.startswith(("where", "work"))]
    odd = source.choice(
        ("-" * 5000 + "1", "1+" * 5000 + "1", "(" * 5000, "not " * 5000 + "1", "batch/0", "\0")
    )
    lines.insert(0, f"{source.choice(('where', 'work'))} = {json.dumps(odd)}")
    return "\n".join(lines).encode(errors="surrogateescape")


def use_sweep(path: Path) -> None:
    """Its points."""
    spec = read_spec(path, Given())
    assert spec.points and spec.varying


# ---- host files of DeepSpeed ----

HOSTS = b"# a job of two servers\nnode-0 slots=8\nnode-1   slots=8  # of a rack\n\n"


def use_hosts(path: Path) -> None:
    """How many nodes they make."""
    for more in ([], ["--num_nodes", "1"], ["--num_gpus", "2"]):
        node_count(parse_deepspeed(["--hostfile", str(path), *more, "train.py"]))
