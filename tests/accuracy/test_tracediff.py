"""Why it exists: a diff that loses a microsecond, or pairs the wrong kernels, misleads whoever
looks for the cause of an error."""

import gzip
import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.cli.app import cli, main
from phantora_ns.trace.diff import GROUPINGS, as_json, diff, pair_steps
from phantora_ns.trace.diff_text import text
from phantora_ns.trace.kineto import TraceError, read_trace

from .traces import Tracer

REAL = Path(__file__).resolve().parents[2] / "bench" / "accuracy" / "data" / "traces"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int)"
)


def check_sums(result):
    assert sum(row.contribution_ns for row in result.rows) == result.difference_ns
    for parts, side in ((result.real, "real"), (result.simulated, "simulated")):
        assert sum(getattr(row, side).owned_ns for row in result.rows) == parts.step_ns
        assert parts.compute_ns + parts.exposed_ns + parts.idle_ns == parts.step_ns


@pytest.fixture
def known(tmp_path):
    """A step of 100 us and one of 120 us: a product 20 us slower under another name, an all-gather
    10 us longer and 4 us less exposed, a host that is 4 us later."""
    real = Tracer()
    real.step(4, 0, 100)
    real.kernel(ADD, 10, 10, launched=8, operator="aten::add")
    call = real.kernel("nvjet_tst_128x256", 20, 38, launched=9, operator="aten::mm")
    real.kernel("splitKreduce_kernel", 58, 2, launched=10, instance=call)
    real.collective("AllGather", 50, 30, 8_000, launched=11)
    real.kernel(ADD, 90, 10, launched=81, operator="aten::add")
    simulated = Tracer()
    simulated.step(4, 1000, 1120)
    simulated.kernel(ADD, 1010, 10, launched=1008, operator="aten::add")
    simulated.kernel(
        "cublasLtMatmul bf16 64x64x64 TN", 1020, 60, launched=1009, operator="aten::mm"
    )
    simulated.collective("AllGather", 1056, 40, 8_000, launched=1011)
    simulated.kernel(ADD, 1110, 10, launched=1099, operator="aten::add")
    return real.write(tmp_path / "real.json"), simulated.write(tmp_path / "simulated.json")


def test_a_known_difference_is_found_where_it_is(known):
    result = diff(*map(read_trace, known), by="operator")
    check_sums(result)
    rows = {row.label: row for row in result.rows}
    assert result.difference_ns == 20_000
    assert rows["aten::mm"].contribution_ns == 20_000
    assert (
        rows["aten::mm"].real.count,
        rows["aten::mm"].real.gpu_ns,
        rows["aten::mm"].simulated.gpu_ns,
    ) == (1, 40_000, 60_000)
    assert rows["aten::add"].contribution_ns == 0 and rows["aten::add"].simulated.count == 2
    gather = rows["all_gather 16,000 B x8"]
    assert (gather.real.owned_ns, gather.simulated.owned_ns, gather.contribution_ns) == (
        20_000,
        16_000,
        -4_000,
    )
    assert (gather.real.gpu_ns, gather.simulated.gpu_ns) == (30_000, 40_000)
    # before the first kernel 10 us each: launched after the gap began; before the last one 10 and
    # 14 us
    assert rows["idle: host behind"].contribution_ns == 4_000
    assert not any(row.unmatched for row in result.rows)


def test_bus_bandwidth_is_that_of_nccl_tests(known):
    rows = as_json(diff(*map(read_trace, known)))["rows"]
    rate = next(row["bus_gb_per_s"] for row in rows if row["kind"] == "communication")
    assert rate["real"] == pytest.approx(16_000 * 7 / 8 / 30_000) and rate[
        "simulated"
    ] == pytest.approx(16_000 * 7 / 8 / 40_000)


def test_a_kernel_without_counterpart_is_listed_and_still_counts(tmp_path):
    traces = []
    for name, extra in (("real", False), ("simulated", True)):
        tracer = Tracer()
        tracer.step(1, 0, 50)
        tracer.kernel(ADD, 0, 10, launched=-1, operator="aten::add")
        if extra:
            tracer.kernel("void made_up(int)", 10, 7, launched=-3)
        traces.append(read_trace(tracer.write(tmp_path / f"{name}.json")))
    result = diff(*traces)
    check_sums(result)
    (row,) = (row for row in result.rows if row.unmatched)
    assert (row.label, row.real.count, row.simulated.gpu_ns, row.contribution_ns) == (
        "made_up",
        0,
        7_000,
        7_000,
    )
    assert result.paired_by["unmatched"] == 1
    assert any("without a counterpart" in line for line in text(result)) and any(
        "made_up" in line for line in text(result)
    )


def test_products_of_one_name_go_by_order_not_by_name(tmp_path):
    """Real kernels of one name cover shapes that take fivefold times; a simulated trace names the
    shape."""
    traces = []
    for name, kernels in (
        ("real", [("nvjet_a", 10), ("nvjet_b", 50), ("nvjet_a", 20)]),
        ("simulated", [("cublas 1", 11), ("cublas 2", 52), ("cublas 3", 23)]),
    ):
        tracer, now = Tracer(), 0
        tracer.step(1, 0, 90)
        for kernel, length in kernels:
            tracer.kernel(kernel, now, length, launched=-1, operator="aten::mm")
            now += length
        traces.append(read_trace(tracer.write(tmp_path / f"{name}.json")))
    rows = {row.label: row.contribution_ns for row in diff(*traces).rows}
    assert rows["nvjet_a | cublas 1  in aten::mm"] == 1_000
    assert rows["nvjet_b | cublas 2  in aten::mm"] == 2_000
    assert rows["nvjet_a | cublas 3  in aten::mm"] == 3_000


def test_messages_that_a_real_trace_does_not_tell_apart_go_by_order(tmp_path):
    traces, told = [], [({"Collective name": "recv"}, 7), ({"Collective name": "send"}, 4)]
    for name, kernels in (("real", [({}, 9), ({}, 3)]), ("simulated", told)):
        tracer = Tracer()
        tracer.step(1, 0, 50)
        for at, (said, length) in enumerate(kernels):
            tracer.kernel("ncclDevKernel_SendRecv(int)", 20 * at, length, launched=-1, **said)
        traces.append(read_trace(tracer.write(tmp_path / f"{name}.json")))
    result = diff(*traces)
    check_sums(result)
    assert result.paired_by == {"message, in order": 2}
    assert [(r.label, r.contribution_ns) for r in result.rows if r.kind == "communication"] == [
        ("send_recv", -1_000)
    ]


def test_an_operator_is_found_by_time_where_no_id_says_it(tmp_path):
    tracer = Tracer()
    tracer.events += [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": start,
            "dur": length,
            "args": {},
        }
        for name, start, length in (
            ("aten::linear", 0, 30),
            ("aten::mm", 5, 10),
            ("aten::mm", 20, 5),
        )
    ]
    for launched in (6, 9, 17, 22, 40):
        tracer.kernel("k", launched + 1, 1, launched=launched)
    found = [
        (a.operator, a.instance) for a in read_trace(tracer.write(tmp_path / "t.json")).activities
    ]
    assert [operator for operator, _ in found] == [
        "aten::mm",
        "aten::mm",
        "aten::linear",
        "aten::mm",
        "",
    ]
    assert found[0] == found[1] != found[3]


def test_steps_go_by_number_else_by_order(tmp_path):
    def steps(numbers):
        tracer = Tracer()
        for at, number in enumerate(numbers):
            tracer.step(number, 10 * at, 10 * at + 10)
            tracer.kernel("k", 10 * at, 5)
        return read_trace(tracer.write(tmp_path / "t.json")).steps

    def pairs(one, other):
        found, left_out = pair_steps(steps(one), steps(other))
        return [(a.number, b.number) for a, b in found], left_out

    assert pairs([2, 3, 4], [3, 4, 5]) == ([(3, 3), (4, 4)], (1, 1))
    assert pairs([1], [7, 8]) == ([(1, 7)], (0, 1))


def test_a_trace_without_steps_is_one_step(tmp_path):
    tracer = Tracer()
    tracer.kernel("k", 30, 5)
    tracer.kernel("k", 10, 5)
    (step,) = read_trace(tracer.write(tmp_path / "t.json")).steps
    assert (step.number, step.start_ns, step.end_ns) == (None, 10_000, 35_000)


def test_steps_of_a_host_that_runs_ahead_are_the_gpus(tmp_path):
    """A host issues three steps in 10 us each; each keeps the GPU busy for 30 us, beginning 1 us
    after its launch at best."""
    tracer = Tracer()
    for number in range(3):
        tracer.step(number, 10 * number, 10 * number + 10)
        for part in (0, 1, 2):  # the last one is launched at the moment at which the step ends
            tracer.kernel(
                "k", 1 + 31 * number + 10 * part, 10, launched=10 * number + (1, 5, 10)[part]
            )
    trace = read_trace(tracer.write(tmp_path / "t.json"))
    assert [(s.number, s.start_ns, s.end_ns) for s in trace.steps] == [
        (0, 1_000, 32_000),
        (1, 32_000, 63_000),
    ]
    parts = diff(trace, trace).real
    assert (parts.step_ns, parts.compute_ns, parts.idle_queued_ns, parts.idle_host_ns) == (
        62_000,
        60_000,
        2_000,
        0,
    )
    alone = Tracer()
    alone.step(5, 0, 10)
    alone.kernel("k", 2, 30, launched=1)
    (step,) = read_trace(alone.write(tmp_path / "t.json")).steps
    assert (step.number, step.start_ns, step.end_ns) == (5, 2_000, 32_000)


@st.composite
def tracers(draw):
    tracer, host, streams = Tracer(), 0, {7: 0, 9: 0, 28: 0}
    for number in range(draw(st.integers(0, 2))):
        tracer.step(number, number * 100, number * 100 + draw(st.integers(1, 100)))
    for _ in range(draw(st.integers(1, 12))):
        host += draw(st.integers(0, 30))
        stream = draw(st.sampled_from(list(streams)))
        start = max(host, streams[stream]) + draw(st.integers(0, 4))
        length = draw(st.integers(0, 40))
        streams[stream] = start + length
        launched = draw(st.sampled_from([host, None]))
        if stream == 28:
            tracer.collective(
                draw(st.sampled_from(["AllGather", "AllReduce"])),
                start,
                length,
                draw(st.sampled_from([8, 800])),
                launched=launched,
            )
        else:
            tracer.kernel(
                draw(st.sampled_from(["a", "b", "nvjet_1"])),
                start,
                length,
                stream=stream,
                launched=launched,
                operator=draw(st.sampled_from([None, "aten::mm", "aten::add"])),
                grid=(draw(st.integers(1, 2)), 1, 1),
                shapes=draw(st.sampled_from([None, [[2, 2]]])),
            )
    return tracer


def readable(tracer, path):
    try:
        trace = read_trace(tracer.write(path))
        diff(trace, trace)
    except TraceError:  # steps or a whole trace without length
        return None
    return trace


@settings(deadline=None)
@given(tracers(), tracers(), st.sampled_from(GROUPINGS))
def test_contributions_add_up_and_a_trace_does_not_differ_from_itself(
    tmp_path_factory, one, other, by
):
    folder = tmp_path_factory.mktemp("traces")
    first, second = readable(one, folder / "one.json"), readable(other, folder / "other.json")
    if first is None or second is None:
        return
    check_sums(diff(first, second, by))
    same = diff(first, first, by)
    check_sums(same)
    assert all(
        row.real == row.simulated and not row.unmatched and row.contribution_ns == 0
        for row in same.rows
    )
    there, back = diff(first, second, by), diff(second, first, by)
    assert there.difference_ns == -back.difference_ns
    # whatever is paired with what, nothing is dropped
    assert sum(row.real.gpu_ns for row in there.rows) == sum(
        row.simulated.gpu_ns for row in back.rows
    )
    assert sum(row.real.count for row in there.rows) == sum(
        row.simulated.count for row in back.rows
    )


@pytest.mark.parametrize("name", ["1b-none-4k-mbs2", "resnet50-none-256"])
def test_a_real_trace_is_itself(name):
    trace = read_trace(REAL / f"{name}.json.xz")
    result = diff(trace, trace)
    check_sums(result)
    assert set(result.paired_by) <= {
        "library operator, in order, equally many",
        "operator, name, shapes and grid",
    }
    assert not any(row.contribution_ns or row.unmatched for row in result.rows)
    assert result.real.step_ns > result.real.compute_ns > 0.5 * result.real.step_ns


def test_bad_files_get_one_line(tmp_path, capsys):
    good = Tracer()
    good.kernel("k", 0, 1)
    good.write(tmp_path / "good.json")
    torn = gzip.compress(b'{"traceEvents": []}')[:-9]
    bad = {
        "absent.json": None,
        "text.json": b"hello",
        "list.json": b"[1]",
        "torn.json.gz": torn,
        "plain.json.gz": b"{}",
        "torn.json.xz": lzma.compress(b'{"traceEvents": []}')[:-9],
        "plain.json.xz": b"{}",
        "empty.json": b'{"traceEvents": []}',
        "odd.json": b'{"traceEvents": [3]}',
        "negative.json": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": -1}]}',
        "times.json": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}]}',
        "nameless.json": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}]}',
    }
    for name, content in bad.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert main(["trace", "diff", str(tmp_path / "good.json"), str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and name in said and "Traceback" not in said


def test_json_says_the_same_as_the_table(known):
    done = CliRunner().invoke(
        cli, ["trace", "diff", "--json", "--by", "family", *map(str, known)], standalone_mode=False
    )
    page = json.loads(done.output)
    assert (
        page["difference"]["step_ns"]
        == sum(row["contribution_ns"] for row in page["rows"])
        == 20_000
    )
    assert page["steps"] == [[4, 4]] and page["real"]["communication_ns"] == 30_000
    lines = text(diff(*map(read_trace, known), by="family"), limit=1)
    assert any(line.startswith("step ") and "+20.00%" in line for line in lines)
    assert any("more rows" in line for line in lines)
