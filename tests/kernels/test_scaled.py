"""Another GPU's times, changed by what the rate that limits the work takes more or less, counted, and
never called exact."""

from dataclasses import replace

import pytest
from recorded import record

from phantora_ns.config import load_gpu
from phantora_ns.kernels import rates
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import DatabaseError
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import BoundBy, SignatureKind, Source

ADD = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int)"
)
LARGE = [0, 1, 0, 16384, 16384, 8192, 1, 14, 14, 14, 14, 68, 1, 8192, 8192, 16384]
STREAM = [ADD, 2_000_000, 1, 1, 128, 1, 1, 0, 0, 0, 0, b"1"]
COPY = [0, 1 << 32, 1, 2]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """No database but those of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(databases, "SHIPPED", tmp_path / "shipped")


@pytest.fixture
def measured(tmp_path):
    return record(
        tmp_path / "h200.sqlite",
        (1, LARGE, None, [6_000_000]),
        (0, STREAM, None, [3_000_000]),
        (3, COPY, None, [80_000_000]),
    )


@pytest.mark.parametrize("gpu", ["h100", "a100", "l40s", "b200"])
@pytest.mark.parametrize(
    ("kind", "fields", "source"),
    [
        (SignatureKind.GEMM, LARGE, Source.GEMM),
        (SignatureKind.KERNEL, STREAM, Source.LAW),
        (SignatureKind.MEMORY, COPY, Source.COPY),
    ],
)
@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_what_the_estimates_differ_by_is_added(tmp_path, gpu, kind, fields, source, slower):
    """The estimates differ by what the limiting rate takes more. What a kernel takes beyond its estimate
    is bound by something else, and so equal on both GPUs; of one that is quicker, all is scaled."""
    there, here = (KernelTimes(name).estimate(kind, fields).duration_ns for name in ("h200", gpu))
    measured_ns = round(slower * there)
    path = record(tmp_path / "h200.sqlite", (kind, fields, None, [measured_ns]))
    scaled = KernelTimes(gpu, [path])
    share = rates.load(gpu).scaled_share(kind, scaled.estimate(kind, fields).bound_by, fields)
    whole = here + measured_ns - there if slower > 1 else measured_ns * here / there
    duration_ns, found, _ = scaled.lookup(kind, fields)
    assert duration_ns == pytest.approx(measured_ns + share * (whole - measured_ns), rel=1e-3)
    assert found == source and not scaled.measured(kind, fields)
    assert (scaled.scaled_from, scaled.scaled) == ("h200", 1)


def test_a_function_that_was_measured_has_a_share_of_its_own():
    rates_here = rates.load("h100")
    known = ("void at::native::index_elementwise_kernel<128, 4>(long)",)
    other = ("void f<128, 4>(long)",)
    shares = [rates_here.scaled_share(0, BoundBy.MEMORY, fields) for fields in (known, other, ())]
    assert shares[0] < 0.5 < shares[1] == shares[2]


def test_only_a_gpu_that_was_measured_has_shares_of_its_own():
    for gpu in ("a100", "l40s", "b200"):
        assert all(rates.load(gpu).scaled_share(kind, 0) == 1 for kind in range(5))
    assert rates.load("h100").scaled_share(SignatureKind.CALL, BoundBy.MEMORY) < 1


def test_what_the_gpu_itself_took_goes_before_anothers_times(measured, tmp_path):
    own = record(tmp_path / "h100.sqlite", (0, STREAM, None, [5_000_000]), gpu="h100")
    both = KernelTimes("h100", [own, measured])
    assert both.lookup(0, STREAM)[:2] == (5_000_000, Source.EXACT)
    assert both.lookup(3, COPY) == KernelTimes("h100", [measured]).lookup(3, COPY)
    assert both.measured(0, STREAM) and not both.measured(3, COPY)
    assert (both.scaled_from, both.scaled) == ("h200", 1)


def test_what_nobody_measured_is_the_gpus_own_estimate(measured):
    unheard = ["unheard_of", 100, 1, 1, 128, 1, 1, 0, 0, 0, 0, b""]
    scaled = KernelTimes("a100", [measured])
    assert (
        scaled.lookup(0, unheard) == KernelTimes("a100").lookup(0, unheard) and scaled.scaled == 0
    )


def test_a_gpu_without_a_database_takes_the_one_alike(measured):
    databases.add(databases.user_path("h200"), [measured])
    (found,) = databases.find("a100")
    assert found.gpu == "h200"
    databases.add(
        databases.user_path("a100"),
        [record(measured.with_name("a100.sqlite"), (3, COPY, None, [9]), gpu="a100")],
    )
    assert [found.gpu for found in databases.find("a100")] == ["a100", "h200"]


def test_nothing_is_scaled_to_a_gpu_that_names_no_model(measured):
    other = record(measured.with_name("h100.sqlite"), (3, COPY, None, [9]), gpu="h100")
    for gpu, files in (("h200", [other]), ("a100", [other]), ("a100", [measured, other])):
        with pytest.raises(DatabaseError, match="choose the simulated GPU's file"):
            databases.open_all(files, gpu)
        with pytest.raises(DatabaseError, match="choose the simulated GPU's file"):
            KernelTimes(gpu, files)


def test_an_h100_has_the_h200s_law_of_clocks_but_for_what_was_measured_on_it():
    own, other = load_gpu("h100").power, load_gpu("h200").power
    measured = {"idle", "drawn", "per_flop", "attention_per_flop", "recorded_in", "follows"}
    assert own == replace(other, **{name: getattr(own, name) for name in measured})
    for bound_by in (BoundBy.COMPUTE, BoundBy.ATTENTION):
        assert own.drawn[bound_by] == other.drawn[bound_by]
    assert own.drawn[BoundBy.MEMORY] < other.drawn[BoundBy.MEMORY]
    # its memory is slower, so fewer kernels wait for the issue of instructions
    for bound_by in (BoundBy.ISSUE, BoundBy.MIXED):
        assert 0 < own.follows[bound_by] < other.follows[bound_by]
    # another chip's recordings are not its own
    for bound_by, runs in own.recorded_in.items():
        assert runs and not runs.keys() & other.recorded_in[bound_by].keys()
