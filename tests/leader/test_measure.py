"""Why it exists: every call that a leader makes on its GPU must give exactly one duration, the one
in the activity records, and none may be lost at the end. Over an emulated GPU with a fake CUPTI
(fake_cupti.c), whose own log lists the records."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from phantora_ns.config import load_gpu

_spec = importlib.util.spec_from_file_location("leading", Path(__file__).with_name("leading.py"))
leading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leading)
LOOKUP, LeadersHub, signature = leading.LOOKUP, leading.LeadersHub, leading.signature

MEMSET = 3

PRELUDE = """
import ctypes, os
lib = ctypes.CDLL(None)
fake = ctypes.CDLL(os.environ["PHANTORA_CUPTI"])
def check(status): assert status == 0, status
pointer = ctypes.c_void_p()
check(lib.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)))
def stream():
    made = ctypes.c_void_p()
    check(lib.cudaStreamCreateWithFlags(ctypes.byref(made), 1))
    return made
def fill(size, on):
    check(lib.cudaMemsetAsync(pointer, 0, ctypes.c_size_t(size), on))
def say(*works):
    n = len(works)
    numbers = [list(c) for c in zip(*works)]
    u64, u32 = ctypes.c_uint64 * n, ctypes.c_uint32 * n
    fake.fake_cupti_next(n, u64(*numbers[0]), u64(*numbers[1]), u32(*numbers[2]))
"""


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    return leading.build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="session")
def leader_library(built_library):
    """libphantora-leader.so; fails, rather than skips, when `make build` has not been run."""
    path = Path(
        os.environ.get("PHANTORA_TEST_LEADER", built_library.parent / "libphantora-leader.so")
    )
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make build`")
    return path


@pytest.fixture
def lead(tmp_path, built_library, leader_library, fake):
    """Runs Python source as a leader; returns (its hub, the fake's log, the CompletedProcess)."""
    gpu = load_gpu("h200")

    def run(source, timeout=60, ends_well=True, **variables):
        above, below = (
            leading.run_dir(tmp_path / "above", gpu),
            leading.run_dir(tmp_path / "below", gpu),
        )
        log = tmp_path / "fake.log"
        environment = {
            **leading.base_environment(),
            "LD_PRELOAD": f"{leader_library} {built_library}",
            "PHANTORA_CUPTI": str(fake),
            "PHANTORA_RUN_DIR": str(below),
            "PHANTORA_LEAD_RUN_DIR": str(above),
            "FAKE_CUPTI_LOG": str(log),
            **variables,
        }
        with LeadersHub(above) as hub, LeadersHub(below, duration_ns=7000):
            done = subprocess.run(
                [sys.executable, "-c", source],
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        assert (done.returncode == 0) == ends_well, done.stderr
        rows = (
            [[int(n) for n in line.split()] for line in log.read_text().splitlines()]
            if log.exists()
            else []
        )
        # below: what proves that CUPTI works
        return (
            hub,
            [row for row in rows if row[0] >= 16],
            done,
        )

    return run


@pytest.fixture
def simulate(tmp_path, built_library):
    """Runs Python source as a simulated rank; returns its hub."""

    def run(source, timeout=60):
        only = leading.run_dir(tmp_path / "only", load_gpu("h200"))
        environment = {
            **leading.base_environment(),
            "LD_PRELOAD": str(built_library),
            "PHANTORA_RUN_DIR": str(only),
        }
        with LeadersHub(only) as hub:
            done = subprocess.run(
                [sys.executable, "-c", source],
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        assert done.returncode == 0, done.stderr
        return hub

    return run


def fill_signature(size):
    return signature(MEMSET, [1, size, 0, 2])


def test_every_call_gives_one_sample_and_none_is_lost_at_exit(lead):
    source = (
        PRELUDE
        + "\ns = stream()\nfor size in range(1, 40):\n    for _ in range(size):\n        fill(64 * size, s)\n"
    )
    hub, log, done = lead(source, PHANTORA_LEAD_DEBUG="1")
    assert sum(works for _, works, _ in log) == sum(range(1, 40)), (
        "the emulator saw one work per call"
    )
    assert {
        key: len(values) for key, values in hub.measured().items() if key != fill_signature(64)
    } == {
        # the first sample was waited for and sent; later ones follow
        fill_signature(64 * size): size
        for size in range(2, 40)
    }
    assert hub.measured()[fill_signature(64)] == [7000]
    assert {ns for values in hub.measured().values() for ns in values} == {7000}, (
        "the durations of the emulator below"
    )
    assert "0 overlapped, 0 without work, 0 failed, 0 lost" in done.stderr, done.stderr


def test_a_signature_is_waited_for_once_and_its_sample_is_what_the_hub_answers(lead):
    source = PRELUDE + "\ns = stream()\nfor _ in range(5):\n    fill(128, s)\n"
    hub, _, _ = lead(source)
    kinds = [m[0] for m in hub.messages]
    assert len(hub.of(LOOKUP)) == 1
    assert kinds.index(13) < kinds.index(LOOKUP), "MEASURED goes before the question"
    assert [len(e[3]) for m in hub.of(13) for e in m[3]] == [1, 4]


@pytest.mark.parametrize("version", [26, 130202])  # of CUDA 12.8 and 13.2
def test_a_cupti_of_either_major_measures(lead, version):
    source = PRELUDE + "\ns = stream()\nfor _ in range(5):\n    fill(128, s)\n"
    hub, _, _ = lead(source, FAKE_CUPTI_VERSION=str(version))
    assert hub.measured() == {fill_signature(128): [7000] * 5}


@pytest.mark.parametrize("version", [18, 120080, 140000])
def test_a_cupti_with_unknown_records_is_refused(lead, version):
    source = PRELUDE + "\nfill(128, stream())\n"
    _, _, done = lead(source, ends_well=False, FAKE_CUPTI_VERSION=str(version))
    assert f"version is {version}; records are known for CUDA 12.2 to 13" in done.stderr


def test_durations_are_those_of_the_records(lead):
    source = (
        PRELUDE
        + """
s = stream()
fill(64, s)
one, two = [(0, 500, 7)], [(0, 300, 7), (800, 1000, 7)]
apart, beside = [(0, 300, 7), (9000, 9100, 7)], [(0, 400, 7), (100, 700, 7)]
for n, works in enumerate([one, two, apart, beside]):
    fill(1000 + n, s)
    say(*works)
    fill(1000 + n, s)
"""
    )
    hub, _, _ = lead(source)
    assert [hub.measured()[fill_signature(1000 + n)][1:] for n in range(4)] == [
        [500],
        [1000],
        [2400],
        [700],
    ]


def test_a_call_that_other_work_overlaps_gives_no_sample(lead):
    source = (
        PRELUDE
        + """
s, t = stream(), stream()
for size in (1, 2, 3):
    fill(size, s)
say((-2 * 10**9 % 2**64, 0, 7)); fill(1, s)  # offsets from two moments, which a busy machine puts far apart
say((-2 * 10**9 % 2**64, 0, 9)); fill(2, t)
say((0, 1000, 7)); fill(3, s)
"""
    )
    hub, _, done = lead(source, PHANTORA_LEAD_DEBUG="1")
    counts = {size: len(hub.measured()[fill_signature(size)]) for size in (1, 2, 3)}
    assert counts == {1: 1, 2: 1, 3: 2}, done.stderr


def test_a_call_without_records_is_estimated_warned_of_and_counted(lead):
    source = (
        PRELUDE
        + "\ns = stream()\nfake.fake_cupti_next(0, None, None, None)\nfill(64, s)\nfill(64, s)\n"
    )
    hub, _, done = lead(source, PHANTORA_LEAD_DEBUG="1")
    assert [m[6] for m in hub.of(LOOKUP)] == [[1, 64, 0, 2]]
    assert any("did no work on the GPU" in text for text in hub.notes("warning"))
    assert "1 without work" in done.stderr
    assert hub.measured() == {fill_signature(64): [7000]}


@pytest.mark.parametrize("needs", ["driver", "all"])
def test_external_ids_that_need_more_records_of_calls_get_them(lead, needs):
    source = PRELUDE + "\ns = stream()\nfor _ in range(3):\n    fill(64, s)\n"
    hub, _, done = lead(source, FAKE_CUPTI_IDS=needs, PHANTORA_LEAD_DEBUG="1")
    assert hub.measured() == {fill_signature(64): [7000] * 3}
    assert (
        f"external ids with {'driver calls' if needs == 'driver' else 'all calls'}" in done.stderr
    )


def test_external_ids_that_are_missing_later_are_noticed_and_asked_for_again(lead):
    source = PRELUDE + "\ns = stream()\nfor _ in range(4):\n    fill(64, s)\n"
    hub, _, done = lead(source, FAKE_CUPTI_IDS="late", PHANTORA_LEAD_DEBUG="1")
    assert hub.measured() == {fill_signature(64): [7000] * 3}, (
        "all but the call by which it was noticed"
    )
    assert [len(entry[3]) for message in hub.of(13) for entry in message[3]] == [1, 2]
    assert any("only with driver calls recorded" in text for text in hub.notes("warning")), (
        done.stderr
    )


def test_the_batch_is_sent_while_the_job_runs(lead):
    source = PRELUDE + "\ns = stream()\nfor i in range(9000):\n    fill(64 + i % 3, s)\n"
    hub, log, _ = lead(source)
    assert len(log) == 9000
    assert sum(len(values) for values in hub.measured().values()) == 9000
    assert len(hub.of(13)) >= 3 + 4, "three that were waited for, and batches of about two thousand"


def test_host_message_of_a_leader_that_measures(lead):
    hub, _, _ = lead(PRELUDE + "\ns = stream()\nfor _ in range(200):\n    fill(64, s)\n")
    (host,) = hub.host()
    assert set(host) == {"score", "latency", "gap"}, (
        "what calls cost under CUPTI is nothing that a simulated rank should pay"
    )
    assert host["score"] > 100_000
    assert [(m[3]["leader"], m[3]["measures"]) for m in hub.of(1)] == [(1, 1)]
    assert len(host["latency"]) == len(host["gap"]) == 3


HOST_JOB = """
event = ctypes.c_void_p()
check(lib.cudaEventCreateWithFlags(ctypes.byref(event), 2))
s = stream()
for _ in range(400):
    fill(64, s)
    check(lib.cudaEventRecordWithFlags(event, s, 0))
"""


def test_a_leader_that_records_its_host_s_costs_measures_nothing_and_needs_no_cupti(lead, tmp_path):
    hub, log, done = lead(
        PRELUDE.replace('fake = ctypes.CDLL(os.environ["PHANTORA_CUPTI"])', "") + HOST_JOB,
        PHANTORA_LEAD_RECORD="host",
        PHANTORA_CUPTI=str(tmp_path / "absent"),
        PHANTORA_LEAD_DEBUG="1",
    )
    assert log == [] and hub.measured() == {}
    (hello,) = hub.of(1)
    assert (hello[3]["leader"], hello[3]["measures"]) == (1, 0)
    assert len(hub.of(LOOKUP)) == 1, "durations are the hub's, as a simulated rank's are"
    (host,) = hub.host()
    assert set(host) == {"score", "calls", "sites"}
    calls = {row[0]: row[1:] for row in host["calls"]}
    assert calls["memset"][0] == calls["record"][0] == 400, "every call is timed"
    assert all(0 < median <= 10 * mean for _, mean, median in calls.values())
    texts = {row[2] for row in host["sites"]}
    assert {"memset - 0", "record - 0"} <= texts, texts
    assert "GPU kept warm for 0.000000 s" in done.stderr


def test_an_unknown_choice_of_what_to_record_is_an_error(lead):
    with pytest.raises(
        AssertionError,
        match="PHANTORA_LEAD_RECORD=clocks: a leader records kernels, host or values",
    ):
        lead(PRELUDE + "\nfill(64, stream())\n", PHANTORA_LEAD_RECORD="clocks")


def test_a_forked_child_reports_its_own(lead):
    source = (
        PRELUDE
        + """
s = stream()
for _ in range(3): fill(64, s)
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
for _ in range(3): fill(64, s)
"""
    )
    hub, _, _ = lead(source)
    assert hub.measured() == {fill_signature(64): [7000] * 6}


BLAS = """
handle, math, one = ctypes.c_void_p(), 3, ctypes.byref(ctypes.c_float(1))
check(lib.cublasCreate_v2(ctypes.byref(handle)))
check(lib.cublasSetStream_v2(handle, stream()))
i64 = ctypes.c_longlong
p = pointer
check(lib.cublasSgemm_v2(handle, 0, 1, 64, 32, 16, one, p, 64, p, 32, one, p, 64))
check(lib.cublasSetMathMode(handle, math))
check(lib.cublasSgemm_v2(handle, 0, 1, 64, 32, 16, one, p, 64, p, 32, one, p, 64))
check(lib.cublasSgemm_v2(handle, 0, 1, 0, 32, 16, one, p, 64, p, 32, one, p, 64))
check(lib.cublasGemmEx(handle, 1, 0, 64, 32, 16, one, p, 14, 16, p, 2, 16, one, p, 0, 64, 68, 0))
nine = i64(9)
shape = handle, 1, 0, 64, 32, 16, one
check(lib.cublasGemmStridedBatchedEx(*shape, p, 14, 16, nine, p, 14, 16, nine, one, p, 14, 64, nine, 12, 68, 0))
check(lib.cublasDgemmStridedBatched(handle, 1, 0, 64, 32, 16, one, p, 16, i64(9), p, 16, i64(9), one, p, 64, i64(9), 5))
check(lib.cublasGemmBatchedEx(handle, 1, 0, 64, 32, 16, one, p, 14, 16, p, 14, 16, one, p, 14, 64, 3, 68, 0))
check(lib.cublasSgemv_v2(handle, 0, 50, 60, one, p, 50, p, 1, one, p, 1))
check(lib.cublasSdot_v2(handle, 77, p, 1, p, 1, p))
check(lib.cublasStrsm_v2(handle, 0, 1, 0, 0, 20, 30, one, p, 20, p, 20))
assert lib.cublasSgemm_v2(handle, 0, 1, -1, 32, 16, one, p, 64, p, 32, one, p, 64) == 7
desc, a, b, c = (ctypes.c_void_p() for _ in range(4))
check(lib.cublasLtMatmulDescCreate(ctypes.byref(desc), 68, 0))
for out, kind, rows, columns, ld in ((a, 14, 16, 64, 16), (b, 14, 16, 32, 16), (c, 14, 64, 32, 64)):
    check(lib.cublasLtMatrixLayoutCreate(ctypes.byref(out), kind, i64(rows), i64(columns), i64(ld)))
def matmul():
    check(lib.cublasLtMatmul(handle, desc, one, p, a, p, b, one, p, c, p, c, None, None, ctypes.c_size_t(0), work))
work = stream()
matmul()
check(lib.cublasLtMatmulDescSetAttribute(desc, 3, ctypes.byref(ctypes.c_int(1)), ctypes.c_size_t(4)))
check(lib.cublasLtMatmulDescSetAttribute(desc, 7, ctypes.byref(ctypes.c_int(4)), ctypes.c_size_t(4)))
matmul()
check(lib.cublasLtMatrixLayoutSetAttribute(c, 5, ctypes.byref(ctypes.c_int(6)), ctypes.c_size_t(4)))
matmul()
"""


def test_library_calls_have_the_simulated_rank_s_signatures(lead, simulate):
    hub, log, done = lead(PRELUDE + BLAS, PHANTORA_LEAD_DEBUG="1")
    wanted = leading.looked_up(
        simulate(PRELUDE.replace('fake = ctypes.CDLL(os.environ["PHANTORA_CUPTI"])\n', "") + BLAS)
    )
    assert set(hub.measured()) == wanted, [msgpack.unpackb(s) for s in set(hub.measured()) ^ wanted]
    assert len(wanted) == 12
    assert all(works == 1 for _, works, _ in log), "cuBLAS's inner calls are part of the outer one"
    assert len(log) == sum(len(values) for values in hub.measured().values()), done.stderr


TORCH = """
import torch
from torch.nn.functional import conv2d, scaled_dot_product_attention
torch.manual_seed(0)
x = torch.randn(4, 8, 16, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
w = torch.randn(16, 8, 3, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
conv2d(x, w, stride=2, padding=1).backward(torch.ones(4, 16, 8, 8, device="cuda", dtype=torch.bfloat16))
conv2d(x.float().to(memory_format=torch.channels_last), w.float(), groups=1).sum().backward()
norm = torch.nn.BatchNorm2d(8).cuda()
norm(x.float()).sum().backward()
q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
for causal in (False, True):
    scaled_dot_product_attention(q, q, q, is_causal=causal).backward(torch.ones_like(q))
linear = torch.nn.Linear(64, 128).cuda().bfloat16()
torch.nn.functional.gelu(linear(torch.randn(32, 64, device="cuda", dtype=torch.bfloat16))).sum().backward()
torch.backends.cuda.matmul.allow_tf32 = True
torch.randn(48, 64, device="cuda") @ torch.randn(64, 80, device="cuda")
torch.bmm(torch.randn(3, 48, 64, device="cuda"), torch.randn(3, 64, 80, device="cuda"))
torch.cuda.synchronize()
import time
time.sleep(0.2)  # PyTorch's autograd threads end the process if it ends before them (jobs/operators.py)
"""


def test_pytorch_s_library_calls_have_the_simulated_rank_s_signatures(lead, simulate):
    hub, log, done = lead(TORCH, timeout=150, PHANTORA_LEAD_DEBUG="1")
    libraries = {1, 2, 4}
    found = {key for key in hub.measured() if msgpack.unpackb(key)[0] in libraries}
    wanted = {
        key
        for key in leading.looked_up(simulate(TORCH, timeout=150))
        if msgpack.unpackb(key)[0] in libraries
    }
    assert found == wanted, [msgpack.unpackb(s) for s in found ^ wanted]
    assert {msgpack.unpackb(key)[0] for key in wanted} == libraries, (
        "products, graphs and batch norm"
    )
    assert len([key for key in wanted if msgpack.unpackb(key)[0] == 2]) >= 6
    assert " 0 lost" in done.stderr, done.stderr
    assert sum(works > 0 for _, works, _ in log) == sum(
        len(values) for values in hub.measured().values()
    )


def test_threads_that_launch_at_once_lose_nothing_of_each_other(lead):
    source = (
        PRELUDE
        + """
import threading
def work(size):
    s = stream()
    for i in range(1500):
        fill(size, s)
threads = [threading.Thread(target=work, args=(64 * (1 + i),)) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
"""
    )
    hub, log, done = lead(source, PHANTORA_LEAD_DEBUG="1")
    assert len(log) == 6000
    # the emulator's page counts for all threads: some see two works, some none
    observed = sum(works > 0 for _, works, _ in log)
    counts = dict(
        zip(
            ("samples", "without"),
            (int(done.stderr.split(word)[0].split()[-1]) for word in (" samples", " without")),
        )
    )
    assert counts["samples"] == observed and counts["without"] == 6000 - observed, done.stderr
    assert sum(len(values) for values in hub.measured().values()) == observed
    assert " 0 lost" in done.stderr
