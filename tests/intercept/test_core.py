"""Why it exists: memory, values and the order of GPU work, through the C API alone, in every
condition of c/conditions.h."""

import pytest

from phantora_ns.report.rank_stats import read_rank_stats

DURATION_NS = 50_000  # long beside a launch on the host, so that the GPU is the bottleneck


@pytest.fixture
def hub(run_dir, request):
    """The hub double, with kernels of DURATION_NS."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).resolve().parent / "recording_hub.py"
    spec = importlib.util.spec_from_file_location("recording_hub", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.RecordingHub(run_dir, DURATION_NS) as running:
        yield running


def test_memory_is_accounted_and_small_values_are_carried(run_program, hub, condition, gpu):
    seen = run_program("memory", condition).values
    assert seen["total"] == str(gpu.memory_bytes) and seen["malloc"] == "0"
    assert seen["fresh"] == str(gpu.context_bytes), "a fresh context takes what the model says"
    assert int(seen["taken"]) >= (20 << 20) + 512
    assert seen["carried"] == "1" and seen["set"] == "7 7 1"
    assert (
        seen["too_much"] == "2"
        and seen["name"] == "cudaErrorMemoryAllocation"
        and seen["last"] == "2 0"
    )
    assert seen["freed"] == "0" and seen["twice"] == "1" and seen["back"] == "1"


def test_pinned_memory_is_reserved_counted_and_zeroed_by_large_copies(run_program, hub, run_dir):
    seen = run_program("pinned").values
    assert seen["alloc"] == seen["copied"] == "0", (
        "4 TiB, whatever this machine has, and no address of a device's for the next"
    )
    assert seen["grown"] == "0" and seen["edges"] == "5 0 0 0 6", (
        "only pages that hold something are written"
    )
    assert seen["registered"] == "0" and seen["unregistered"] == "0 713" and seen["freed"] == "0 1"
    (page,) = [read_rank_stats(path) for path in (run_dir / "ranks").iterdir()]
    assert page.peak_pinned_bytes == (4 << 40) + (256 << 20) + (1 << 20)
    assert page.pinned_bytes == 256 << 20


def test_events_measure_kernels_in_every_condition(run_program, hub, condition, gpu):
    seen = run_program("timeline", condition).values
    assert "launch_failed" not in seen and seen["streams"] == seen["destroyed"] == "0"
    assert seen["unrecorded"] == "-400", "cudaErrorInvalidResourceHandle"
    assert seen["pending"] == "600 600" and seen["done"] == "0 0"
    expected = 10 * (DURATION_NS + gpu.host.kernel_gap_ns)
    assert abs(int(seen["ten"]) - expected) <= 64, (
        "a float of milliseconds near 0.5 resolves 30 to 60 ns"
    )
    assert seen["second_after_first"] == seen["side_by_side"] == "1"


def test_an_event_on_an_idle_stream_is_ready_after_the_stream_is_synchronised(run_program, hub):
    assert int(run_program("timeline").values["idle"]) >= 0


def test_a_launch_is_asked_for_once_per_signature(run_program, hub):
    run_program("timeline")
    launches = hub.signatures(0)
    assert [(f[0], f[1:4], f[4:7]) for f in launches] == [
        ("_Z6kernelPfi", [100, 1, 1], [128, 1, 1]),
        ("_Z6kernelPfi", [200, 1, 1], [128, 1, 1]),
    ]


def test_copies_to_the_host_of_what_nothing_computed_are_counted_exactly(
    run_program, hub, condition
):
    seen = run_program("reads", condition).values
    assert seen.pop("large_values") == "15 5", "what is known of a large tensor is read as it is"
    assert {name: int(count) for name, count in seen.items()} == {
        "written_by_the_host": 0,
        "nothing_known": 1,
        "two_more_copies": 2,
        "many_rows_are_one_copy": 1,
        "filled": 0,
        "a_byte_beyond": 1,
        "a_byte_before": 1,
        "within_the_device": 0,
        "the_copy_of_what_is_not_known": 1,
        "the_copy_as_a_whole": 1,
        "large_zeros": 0,
        "large_and_known": 0,
        "large_but_for_a_number": 1,
        "too_large_to_be_carried": 0,
        "and_so_lost": 1,
        "captured": 0,
        "launched_twice": 2,
    }
