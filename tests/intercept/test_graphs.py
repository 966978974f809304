"""Why it exists: captures must be refused where CUDA refuses them, and graphs must take the time of
their longest path.

The oracle of the codes is the CUDA programming guide ("Cross-stream Dependencies and Events",
"Prohibited and Unhandled Operations", "Invalidation") and the pages of cudaStreamBeginCapture,
cudaStreamEndCapture and cudaThreadExchangeStreamCaptureMode.
"""

import pytest

DURATION_NS = 50_000
(
    UNSUPPORTED,
    INVALIDATED,
    MERGE,
    UNMATCHED,
    UNJOINED,
    ISOLATION,
    IMPLICIT,
    CAPTURED_EVENT,
    WRONG_THREAD,
) = range(900, 909)
ACTIVE, SPOILT = "0/1", "0/2"
# "will also return an error value and a NULL graph"
SPOILT_END = [
    str(INVALIDATED),
    "none",
    "0/0",
    "0/0",
    str(INVALIDATED),
    "0",
]


@pytest.fixture
def hub(run_dir, request):
    """The hub double, with kernels of DURATION_NS."""
    from tests.intercept.recording_hub import RecordingHub

    with RecordingHub(run_dir, DURATION_NS) as running:
        yield running


@pytest.fixture
def codes(run_program, hub):
    return {name: line.split() for name, line in run_program("capture").values.items()}


def ends_well(line, nodes, edges=None):
    assert line[-4:] == ["0/0", "0/0", "0", "0"] and f"nodes={nodes}" in line, line
    assert edges is None or f"edges={edges}" in line, line


def test_captures_begin_and_end(codes):
    ends_well(codes["empty"], 0)
    ends_well(codes["two_in_a_row"], 2, edges=1)
    assert codes["begin_legacy"][0] != "0", (
        "capture may not be initiated if the stream is cudaStreamLegacy"
    )
    assert codes["begin_twice"][1] != "0", "only if the stream is not already in capture mode"
    assert codes["end_without_begin"][0] != "0" and codes["begin_bad_mode"][0] == "1"
    assert (
        codes["info"][2:7] == ["0", "status=1", "id=1", "graph=1", "dependencies=1"]
        and "count=1" in codes["info"]
    )
    assert codes["info_without"][:2] == ["0", "status=0"]


@pytest.mark.parametrize(
    "name",
    [
        "synchronize_captured",
        "synchronize_captured_relaxed",
        "query_captured",
        "device_synchronize",
        "device_synchronize_local",
        "device_synchronize_relaxed",
    ],
)
def test_what_is_captured_cannot_be_waited_for(codes, name):
    """Nor a broader handle that encompasses it, such as its device."""
    assert codes[name][1:3] == [str(UNSUPPORTED), SPOILT] and codes[name][-6:] == SPOILT_END


@pytest.mark.parametrize("name", ["query_captured_event", "synchronize_captured_event"])
def test_a_captured_event_cannot_be_waited_for_in_any_mode(codes, name):
    assert codes[name][3:5] == [str(CAPTURED_EVENT), SPOILT] and codes[name][-6:] == SPOILT_END


def test_unsafe_calls_are_for_relaxed_captures_and_threads(codes):
    for name in ("malloc", "malloc_local", "memcpy", "free_memory"):
        assert codes[name][1:3] == [str(UNSUPPORTED), SPOILT] and codes[name][-6:] == SPOILT_END, (
            name
        )
    for name in (
        "malloc_relaxed",
        "malloc_exchanged",
        "memcpy_relaxed",
        "query_plain_event_relaxed",
        "synchronize_other",
    ):
        ends_well(codes[name], 0)
    assert codes["malloc_exchanged"][1:6] == ["0", "0", "0", "0", "2"], (
        "the exchange gives back the mode before"
    )
    assert codes["thread_global"][2] == str(UNSUPPORTED) and SPOILT in codes["thread_global"]
    for name in ("thread_local", "thread_relaxed", "thread_beside_local"):
        assert codes[name][2] == "0" and ACTIVE in codes[name], name


def test_the_legacy_stream_depends_on_blocking_streams(codes):
    for name in (
        "legacy_beside_blocking",
        "record_legacy_beside_blocking",
        "memcpy_beside_blocking",
    ):
        assert codes[name][1:3] == [str(IMPLICIT), SPOILT] and codes[name][-6:] == SPOILT_END, name
    ends_well(codes["memset_legacy"], 0)


def test_dependencies_stay_within_a_capture(codes):
    assert codes["wait_plain_event"][2:4] == [str(ISOLATION), SPOILT]
    assert codes["merge"][5:8] == [str(MERGE), SPOILT, SPOILT]
    ends_well(codes["wait_external"], 2, edges=1)
    ends_well(codes["record_external"], 3, edges=2)
    ends_well(codes["wait_unrecorded_event"], 0)


def test_forks_are_joined_where_the_capture_began(codes):
    ends_well(codes["fork_join"], 4, edges=4)
    assert codes["fork_join"][4] == ACTIVE, "a stream that waits for a captured event is captured"
    assert (
        codes["fork_unjoined"][-6:-4]
        == codes["fork_worked_after_join"][-6:-4]
        == [str(UNJOINED), "none"]
    )
    assert codes["end_on_fork"][4] == str(UNMATCHED)
    assert codes["thread_ends_global"][2] == str(WRONG_THREAD)
    assert codes["thread_ends_relaxed"][2] == "0"


def test_graphs_outlive_what_they_were_made_of(codes):
    assert codes["launch"][:12] == ["0"] * 12, "launches before and after cudaGraphDestroy"
    assert codes["dependencies"][4:10] == ["0", "count=2", "0", "before=0", "0", "before=1"]
    assert codes["captured_launch"][7] == "801", "a graph within a graph is refused, not left out"
    assert codes["nothing_there"][:4] == ["1"] * 4


def test_an_object_lives_as_long_as_the_last_graph_that_holds_it(codes):
    """CUDA programming guide, "CUDA User Objects": a graph owns the references that were given to
    it, and so does what is instantiated from it; the destructor runs when the last one is gone."""
    assert codes["user_object"][1:11] == [*["0"] * 7, "early=0", "0", "late=1"]
    assert codes["user_object_shared"][1:7] == [*["0"] * 4, str(INVALIDATED), "lost=1"]
    assert codes["user_object_wrong"][:4] == ["1"] * 4


def test_a_graph_takes_its_longest_path(run_program, hub, condition, gpu):
    seen = run_program("graphs", condition).values
    assert not [key for key in seen if key.endswith("failed")]
    one = DURATION_NS + gpu.host.graph_gap_ns
    paths = {
        "chain": 10,
        "chain_twice": 20,
        "fork": 5,
        "only_forked": 2,
        "until_middle": 2,
        "two_streams": 20,
    }
    assert {key: round(int(seen[key]) / one, 2) for key in paths} == paths
    assert gpu.host.graph_gap_ns < gpu.host.kernel_gap_ns, (
        "or the times above would not tell graphs from streams"
    )


def test_values_move_at_each_launch_and_not_at_capture(run_program, hub, condition):
    assert run_program("graphs", condition).values["values"] == "9 5 3 3 calls 2"
