"""Why it exists: calls of which only sizes are known must cost what their operation counts say, and
nothing else must change."""

import pytest

from phantora_ns.kernels import rates
from phantora_ns.kernels.estimators import calls
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import SignatureKind

R_32F, R_64F, C_32F = 0, 1, 4
SOLVERS = [
    "cusolverDnSpotrf",
    "cusolverDnSgetrf",
    "cusolverDnSgeqrf",
    "cusolverDnSsyevd",
    "cusolverDnSgesvdj",
    "cusolverDnXgeev",
    "cublasSgetrfBatched",
    "cusolverDnSsytrf",
    "cusolverDnSgesvdaStridedBatched",
]


@pytest.fixture(scope="module")
def times():
    return KernelTimes("h200")


def ns(times, name, *numbers):
    return times.lookup(SignatureKind.CALL, [name, list(numbers)])[0]


@pytest.mark.parametrize("name", SOLVERS)
def test_a_large_factorisation_grows_with_the_cube_of_its_size(times, name):
    # minutes, near what a duration may be at most
    first = 8192 if name.endswith("gesvdj") else 16384
    small, large = (ns(times, name, R_32F, n, n, 0, 1) for n in (first, 2 * first))
    assert 7 < large / small < 9


@pytest.mark.parametrize("name", SOLVERS)
def test_no_solver_beats_the_peak(times, name):
    """Every one of these does at least n**3 / 3 operations, LAPACK's count of a Cholesky
    factorisation, two per multiply-add."""
    n = 8192
    assert ns(times, name, R_32F, n, n, 0, 1) > n**3 / 3 / rates.load("h200").peak("fp32")


@pytest.mark.parametrize(
    ("name", "numbers", "us"),
    [
        ("cusolverDnSpotrf", (R_32F, 1024, 1024, 0, 1), 348),
        ("cusolverDnSgetrf", (R_32F, 1024, 1024, 0, 1), 1848),
        ("cusolverDnSsyevd", (R_32F, 1024, 1024, 1, 1), 9912),
        ("cublasStrsm", (R_32F, 2048, 2048, 2048, 1), 720),
    ],
)
def test_columns_wait_for_one_another(times, name, numbers, us):
    """On an H200 (bench/frameworks/micro.py). By operations alone all of these took a tenth to a
    half."""
    assert 0.7 * us < ns(times, name, *numbers) / 1000 < 1.4 * us


def test_more_work_takes_longer(times):
    name, n = "cusolverDnSsyevd", 4096
    assert ns(times, name, R_32F, n, n, 1, 1) > ns(times, name, R_32F, n, n, 0, 1)  # with vectors
    assert ns(times, name, R_64F, n, n, 1, 1) >= ns(times, name, R_32F, n, n, 1, 1)
    assert ns(times, "cusolverDnCgetrf", C_32F, n, n, 0, 1) > ns(
        times, "cusolverDnSgetrf", R_32F, n, n, 0, 1
    )
    assert ns(times, "cublasSgetrfBatched", R_32F, 64, 64, 0, 10**6) > ns(
        times, "cublasSgetrfBatched", R_32F, 64, 64, 0, 1
    )


def test_a_transform_moves_its_data_at_least_once(times):
    points = 1 << 26
    moved = points * 16 / rates.load("h200").memory_bytes_per_ns  # complex in, complex out
    rows = ns(times, "cufftXtExec", C_32F, C_32F, points // 1024, 1024)
    assert rows > moved
    # does not fit shared memory: more than one pass
    assert ns(times, "cufftXtExec", C_32F, C_32F, 1, points) > 2 * moved
    assert ns(times, "cufftXtExec", R_32F, C_32F, points // 1024, 1024) < rows


@pytest.mark.parametrize(
    "numbers",
    [[], [0, 0], [0, -1, 4, 0, 1], [0, 4, 4, 0, 1, 7], ["x"] * 5, [4, 4, 0, 16], [4, 4, 1, 0]],
)
def test_odd_input_is_a_guess(times, numbers):
    for name in ("cusolverDnSpotrf", "cufftXtExec", "cusolverDnSnothing", "cublasSdot_v2"):
        assert times.lookup(SignatureKind.CALL, [name, numbers])[0] >= 1
    assert calls.duration_ns("cublasSdot_v2", [5], rates.load("h200")) is None


def test_copies_between_gpus_take_nvlink_where_there_is_any():
    def rate(gpu):
        return (1 << 28) / KernelTimes(gpu).lookup(SignatureKind.MEMORY, [0, 1 << 28, 3, 2])[0]

    assert rate("h200") > 5 * rates.load("h200").pcie_bytes_per_ns
    assert rate("l40s") < rates.load("l40s").pcie_bytes_per_ns  # a model without NVLink
