"""Why it exists: jobs do more than dispatch operators. They copy, use streams and events directly,
set allocator options, share tensors between processes, and call other libraries."""

import sys

import pytest

from phantora_ns.config import load_gpu
from tests.torch.outcome import JOBS, Outcome, check_names

# These start processes, compile for long, or change the process. Each gets a launch of its own, in
# the nightly run.
ALONE = {
    "allocator_options",
    "compiled_by_searching",
    "symmetric_memory_is_refused",
    "tensors_are_handed_to_another_process",
}
QUICK = [name for name in check_names("runtime_and_libraries") if name not in ALONE]


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
            JOBS / "runtime_and_libraries.py",
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
def test_check(outcome, name):
    assert outcome.complaints(name) == []


@pytest.mark.slow
def test_copies_are_as_fast_as_the_links(outcome):
    """No copy is faster than the data sheet. Pinned memory and NVLink come near it, pageable memory
    does not."""
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
def test_check_alone(phantora, name):
    assert launch(phantora, [name], timeout=380).complaints(name) == []
