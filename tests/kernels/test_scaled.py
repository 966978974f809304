"""Another GPU's times by data sheet ratio: the ratio of whichever rate limits the work, counted,
and never called exact."""

from dataclasses import replace

import pytest
from recorded import record

from phantora_ns.kernels import rates
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import DatabaseError
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.run.run_request import build_request
from phantora_ns.protocol import SignatureKind

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
    ("kind", "fields", "source", "rate"),
    [
        (SignatureKind.GEMM, LARGE, 3, lambda r: r.peak("bf16")),
        (SignatureKind.KERNEL, STREAM, 2, lambda r: r.memory_bytes_per_ns),
        (SignatureKind.MEMORY, COPY, 6, lambda r: r.pcie_bytes_per_ns),
    ],
)
def test_the_limiting_rate_scales_a_measured_time(measured, gpu, kind, fields, source, rate):
    own, scaled = KernelTimes("h200", [measured]), KernelTimes(gpu, [measured])
    there, here = own.lookup(kind, fields), scaled.lookup(kind, fields)
    assert there[1] == 0 and here[1] == source and not scaled.measured(kind, fields)
    ratio = rate(rates.load("h200")) / rate(rates.load(gpu))
    assert here[0] == pytest.approx(there[0] * ratio, rel=0.02)
    assert (own.scaled_from, own.scaled, scaled.scaled_from, scaled.scaled) == (None, 0, "h200", 1)


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
    (found,) = databases.find("a100")
    assert found.gpu == "a100"


def test_nothing_is_scaled_to_a_gpu_that_names_no_model(measured):
    other = record(measured.with_name("h100.sqlite"), (3, COPY, None, [9]), gpu="h100")
    for gpu, files in (("h200", [other]), ("a100", [other]), ("a100", [measured, other])):
        with pytest.raises(DatabaseError, match="choose the simulated GPU's file"):
            databases.open_all(files, gpu)
        with pytest.raises(DatabaseError, match="choose the simulated GPU's file"):
            KernelTimes(gpu, files)


def test_anothers_law_of_clocks_holds_for_anothers_times_only(measured, tmp_path):
    """An H100 is an H200's chip at the same limit. What an H100 itself took has a clock that nothing tells."""

    def power(cluster, *files):
        options = RunOptions(cluster=cluster, kernels=files, quiet=True)
        return build_request(["true"], options).cluster.gpu_model.power

    own = record(tmp_path / "own.sqlite", (3, COPY, None, [9]), gpu="h100")
    law = power("h200-1x8", measured)
    assert law.known and not law.like
    assert power("h100-1x8", measured) == power("h100-1x8") == replace(law, like="h200")
    assert not power("h100-1x8", own).known
