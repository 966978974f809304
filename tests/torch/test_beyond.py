"""Why it exists: jobs do more than dispatch operators: copies, streams, allocator settings, other
processes, other libraries."""

import sys

import pytest

from phantora_ns.config import load_gpu
from tests.torch.outcome import JOBS, Outcome, check_names

# These start processes, compile for long, or leave the process different: each a launch of its own,
# in the nightly run.
ALONE = {
    "allocator_options",
    "compiled_by_searching",
    "symmetric_memory_is_refused",
    "tensors_are_handed_to_another_process",
}
QUICK = [name for name in check_names("beyond") if name not in ALONE]


def launch(phantora, names, timeout=150):
    return Outcome(
        phantora(
            "--quiet",
            "--host-time",
            "none",
            "--nnodes",
            1,
            "--gpus-per-node",
            2,
            "--",
            sys.executable,
            JOBS / "beyond.py",
            *names,
            timeout=timeout,
        ),
        ranks=1,
    )


@pytest.fixture(scope="module")
def outcome(phantora):
    return launch(phantora, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_beyond(outcome, name):
    assert outcome.complaints(name) == []


@pytest.mark.slow
def test_copies_are_as_fast_as_the_links(outcome):
    """Never faster than the data sheet; pinned memory and NVLink near it, pageable memory far from
    it."""
    gpu = load_gpu("h200")
    pcie, nvlink = gpu.pcie_bytes_per_ns, gpu.nvlink_bytes_per_ns  # bytes per ns are GB/s
    (seen,) = outcome.lines("RATES")
    assert 0.75 * pcie < seen["to_device"] < pcie and 0.75 * pcie < seen["to_host"] < pcie, seen
    assert seen["from_pageable"] < 0.6 * pcie, seen
    assert 0.75 * nvlink < seen["peer"] < nvlink, seen


@pytest.mark.slow
def test_what_is_refused_is_named(outcome):
    assert outcome.done.returncode == 0, outcome.done.stderr
    for name in ("cusparseCreateCsr", "cudnnCreateDropoutDescriptor"):
        assert f"{name} is not supported" in outcome.done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(ALONE))
def test_beyond_alone(phantora, name):
    assert launch(phantora, [name], timeout=380).complaints(name) == []
