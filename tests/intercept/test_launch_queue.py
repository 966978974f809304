"""Why it exists: the host runs ahead of a stream by so many works and no more, whatever the works
wait for, and what it then sees of its GPU is what a host sees that really waits. Held against an
oracle that keeps every end as a number."""

import importlib.util
import random
from pathlib import Path

import pytest

from phantora_ns.kernels.database.host_table import HostRecord, write_table
from phantora_ns.protocol import KernelClass

LIMIT = 1022  # H200: data/gpus/h200.toml
COLLECTIVE_NS = 400_000
UNKNOWN_NS = 2_300  # the job's own time before a call
TWO_AHEAD, TWO_BEHIND, NONE = 2 | 1 << 8, 2, 0


def duration_ns(fields):
    """By the grid; a copy: 30 us."""
    return 1_000 * fields[1] if isinstance(fields[0], str) else 30_000


def works(fields):
    """Grids that are multiples of 7 are calls of two works: the first ends as the second starts, or
    both with the call."""
    if not isinstance(fields[0], str):
        return NONE
    return TWO_AHEAD if fields[1] % 14 == 7 else TWO_BEHIND if fields[1] % 14 == 0 else 1


class Exact(random.Random):
    """Tells how long everything takes at least, and no times."""

    def randrange(self, *_):
        return 0

    def random(self):
        return 1.0


class Oracle:
    """One host, streams and events, all times known at once. `cost`: what each call costs the host,
    by letter."""

    def __init__(self, gpu, cost, limit, start_ns):
        self.gap, self.latency, self.limit = (
            gpu.host.kernel_gap_ns,
            gpu.host.launch_latency_ns,
            limit or 1 << 40,
        )
        self.cost, self.now = cost, start_ns
        self.head, self.ends, self.events, self.seen = {}, {}, {}, []

    def _room(self, stream, count):
        ends = self.ends.setdefault(stream, [])
        if count and len(ends) + count > self.limit:
            self.now = max(self.now, ends[len(ends) + count - self.limit - 1])
        return ends

    def act(self, what, first=0, second=0):
        # a query of an event that is complete, or was never recorded, costs the host nothing
        if what != "q" or self.events.get(first, 0) > self.now:
            self.now += self.cost[what]
        issued = self.now + self.latency
        if what in "kh":
            packed = works(["", second] if what == "k" else [0])
            length = 1_000 * second if what == "k" else 30_000
            ends = self._room(first, packed & 255)
            begin = max(self.now + self.latency, self.head.get(first, -self.gap) + self.gap)
            self.head[first] = begin + length
            ends += [begin] * (packed >> 8) + [begin + length] * ((packed & 255) - (packed >> 8))
        elif what == "c":
            ends = self._room(first, 1)
            self.head[first] = max(self.now + self.latency, self.head.get(first, 0)) + COLLECTIVE_NS
            ends.append(self.head[first])
        elif what == "r":
            self.head[second] = max(issued, self.head.get(second, 0))
            self.events[first] = self.head[second]
        elif what == "w" and second in self.events:
            self.head[first] = max(self.head.get(first, 0), self.events[second])
        elif what == "y":
            self.now = max(self.now, self.head.get(first, 0))
        elif what == "q":
            self.seen.append(f"q {int(self.events.get(first, 0) <= self.now)}")
        elif what == "t":
            self.seen.append(f"t {self.now}")


@pytest.fixture
def job(run_dir, run_program, gpu):
    """Runs scripts of c/queue.c; returns what they printed, what the oracle says, and the messages
    to the hub."""
    path = Path(__file__).resolve().parent / "recording_hub.py"
    spec = importlib.util.spec_from_file_location("recording_hub", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(
        script,
        limit=LIMIT,
        contention_permille=0,
        crowd_gap_ns=0,
        tells=None,
        other_stream=(0, 0),
        kernel_class=0,
    ):
        shares = (gpu.contention.other_stream, gpu.contention.other_stream_lists)
        conf = mine = (run_dir / "device.conf").read_text()
        for key, was, value in (
            ("launch_queue", gpu.host.launch_queue, limit),
            # the oracle has neither such a gap nor such a cost
            ("crowd_gap_ns", gpu.host.crowd_gap_ns, crowd_gap_ns),
            ("other_stream_permille", round(1000 * shares[0]), other_stream[0]),
            ("other_stream_lists_permille", round(1000 * shares[1]), other_stream[1]),
        ):
            assert f"{key} {was}\n" in mine
            mine = mine.replace(f"{key} {was}\n", f"{key} {value}\n")
        (run_dir / "device.conf").write_text(mine)
        write_table(run_dir / "host.tbl", HostRecord(), UNKNOWN_NS)
        lines = ["t", *script, "t"]
        padded = "".join(f"{line} {'0 ' * (3 - len(line.split()))}\n" for line in lines)
        with module.RecordingHub(
            run_dir,
            duration_ns,
            works,
            COLLECTIVE_NS,
            contention_permille=contention_permille,
            tells=tells,
            kernel_class=kernel_class,
        ) as hub:
            printed = run_program(
                "queue", input=padded, PHANTORA_HOST_TIME="model"
            ).stdout.splitlines()
        (run_dir / "device.conf").write_text(conf)
        call = gpu.host.call_ns
        names = {
            "k": "launch",
            "h": "copy",
            "c": "comm",
            "r": "record",
            "w": "wait",
            "y": "sync",
            "q": "query",
        }
        cost = {what: call[name] + UNKNOWN_NS for what, name in names.items()} | {"t": UNKNOWN_NS}
        oracle = Oracle(gpu, cost, limit, int(printed[0].split()[1]) - cost["t"])
        for line in lines:
            what, *numbers = line.split()
            oracle.act(what, *map(int, numbers))
        return printed, oracle.seen, hub

    return run


def asked(hub):
    return len(hub.of(2)) + len(hub.of(3))


def test_the_host_is_held_back_by_the_queue_and_not_before(job):
    printed, expected, hub = job(
        [*["k 0 50"] * LIMIT, "t", *["k 0 50"] * 2, "t", *["k 0 50"] * 1976, "t"]
    )
    assert printed == expected
    assert asked(hub) == 0, "everything is known here"
    times = [int(line.split()[1]) for line in printed]
    assert times[1] < 12_000 * LIMIT < 51_300 * 1976 < times[3], (
        "only the last launches waited for the GPU"
    )


def test_every_stream_has_a_queue_of_its_own(job):
    printed, expected, _ = job(
        [f"k {i % 4} 50" for i in range(4 * LIMIT)] + ["t", "k 1 50", "t", *["k 2 50"] * 9, "t"]
    )
    assert printed == expected


def test_works_count_and_copies_from_the_host_records_and_waits_do_not(job):
    printed, expected, _ = job(
        ["k 0 49", "h 0", "r 0 0", "w 0 0", "k 0 42", "h 0"] * 700 + ["t"], limit=300
    )
    assert printed == expected


def test_a_queue_that_waits_for_communication_asks_nobody_until_the_job_looks(job):
    step = ["c 1", "r 0 1", "w 0 0", *["k 0 40"] * 9]
    printed, expected, hub = job(step * 300 + ["t"])
    assert printed == expected
    assert asked(hub) == 1, (
        "the last reading of the clock but one; the last has nothing left to ask"
    )
    assert len(hub.of(8)) == 300


def test_work_is_never_negative_where_an_expression_is_cut(job):
    """After 1,024 kernels a stream's expression becomes a vertex. When the last of them is a call of two
    works, and the host waits for the first, that ends a kernel's time before the call."""
    ahead = 32  # calls of two works in a queue of 65
    printed, expected, hub = job(
        ["c 1", *["k 0 49"] * (1024 + ahead), "c 1", "t"], limit=65, contention_permille=300
    )
    assert printed == expected
    heads = [head for kind in (2, 8) for message in hub.of(kind) for head in heads_of(message)]
    assert sum(len(head) for head in heads) > 6
    for head in heads:
        for work in head[2::3]:
            assert min(work if isinstance(work, list) else [work]) >= 0


@pytest.mark.parametrize(
    "waiting, crowded",
    [
        ([], False),
        (["k 1 5"], False),
        (["k 1 5", "k 1 5"], False),
        (["k 1 5", "k 2 5"], True),
        (["k 1 5", "c 2"], True),
        (["k 1 5", "k 2 5", "k 3 5"], True),
        (["k 1 5", "h 2"], False),
        (["k 1 5", "w 2 0"], False),
    ],
)
def test_kernels_are_further_apart_while_two_other_streams_have_kernels_that_wait(
    job, waiting, crowded
):
    """As measured (bench/gpus/crowd.py): not where one stream has some, and neither copies from the
    host nor streams that only wait count."""
    gap, behind = 1_400, 100
    script = ["k 0 3000", "r 0 0"]
    for call in waiting:
        script += [f"w {call.split()[1]} 0", call]
    script += [*["k 0 50"] * behind, "y 0", "t"]
    ends = [int(job(script, crowd_gap_ns=each)[0][-1].split()[1]) for each in (0, gap)]
    assert ends[1] - ends[0] == (gap * behind if crowded else 0)


def cost_ns(job, script, kernel_class=0):
    """How much later the script ends because kernels of other streams cost the stream that computes time."""
    ends = [
        int(job(script, other_stream=shares, kernel_class=kernel_class)[0][-1].split()[1])
        for shares in ((0, 0), (940, 580))
    ]
    return ends[1] - ends[0]


@pytest.mark.parametrize(
    "beside, share",
    [
        (["w 1 0", "k 1 100"], 1),
        (["k 1 100"], 1),
        (["w 1 0", "k 1 100", "w 2 0", "k 2 50"], 1.5),
        (["w 1 0", *["k 1 15"] * 6], 0),  # they leave multiprocessors free
        (["w 1 0", "h 1"], 0),
        (["y 0", "k 1 100"], 0),  # nothing is queued
    ],
)
def test_a_kernel_on_another_stream_costs_those_beside_it_a_share_of_its_time(job, beside, share):
    """As measured: of a cast 94 %, of a kernel on a list of tensors 58 % (bench/contention/two_kernels.py)."""
    script = ["k 0 3000", "r 0 0", *beside, *["k 0 50"] * 20, "y 0", "t"]
    for kernel_class, each in ((0, 940), (KernelClass.OPTIMIZER, 580)):
        assert cost_ns(job, script, kernel_class) == each * 100 * share


def test_a_long_kernel_costs_no_more_than_runs_beside_it(job):
    """Of 30 ms, what is queued on the stream that computes: 3 ms less what the host has taken since."""
    script = ["k 0 3000", "k 1 30000", "y 0", "t"]
    assert 0.9 * 3_000_000 * 0.94 < cost_ns(job, script) < 3_000_000 * 0.94


def test_a_stream_that_waits_for_that_kernel_pays_once(job):
    """It does not run beside it."""
    script = ["k 0 3000", "r 0 0", "w 1 0", "k 1 100", "r 1 1", "w 0 1", "k 0 50", "y 0", "t"]
    assert cost_ns(job, script) == 0


def heads_of(message):
    """The expressions of a SYNC or an OPS, and of the vertices that it defines."""
    yield message[6]
    for _, head in message[3 if message[0] == 8 else 4].get("nodes", []):
        yield head


def test_communication_on_the_stream_that_computes_holds_it_up(job):
    """As PyTorch's blocking collectives do; on another stream it holds nothing up until that is
    waited for."""
    *_, hub = job(["c 0", "k 0 40", "c 0", "c 1", "k 0 40", "c 0", "y 0"])
    (client,) = hub._times
    stalls = [
        stall
        for kind in (2, 8)
        for message in hub.of(kind)
        for stall in message[3 if kind == 8 else 4].get("stalls", [])
    ]
    assert [
        (device, hub._time(client, after) - hub._time(client, before))
        for device, before, after in stalls
    ] == [(0, COLLECTIVE_NS)] * 2


def random_script(draw):
    script = []
    for _ in range(600):
        what = draw.choices("kchrwqyt", (30, 4, 2, 6, 6, 6, 0.4, 1))[0]
        stream, event = draw.randrange(3) if draw.random() < 0.5 else 0, draw.randrange(6)
        calls = {
            "k": f"{stream} {draw.choice((2, 5, 7, 14, 90))}",
            "c": f"{draw.choice((3, 3, stream))}",
            "h": f"{stream}",
            "t": "",
            "r": f"{event} {draw.choice((stream, 3))}",
            "w": f"{draw.choice((stream, 3))} {event}",
            "q": f"{event}",
            "y": f"{stream}",
        }
        script.append(f"{what} {calls[what]}")
    return script


@pytest.mark.parametrize("seed", [73, 85, *range(8)])
def test_random_jobs_see_what_a_host_that_waits_sees(job, seed):
    draw = random.Random(seed)
    script = random_script(draw)
    printed, expected, _ = job(script, limit=draw.choice((3, 8, 20)))
    assert printed == expected


def test_what_the_hub_tells_of_times_saves_questions_and_changes_no_answer(job):
    """However much it tells, and however loosely: that is a matter of real time."""
    questions = {False: 0, True: 0}
    for seed in range(8):
        draw = random.Random(seed)
        script, limit = random_script(draw), draw.choice((3, 8, 20))
        for tells in (False, True):
            told = random.Random(seed) if tells else None
            printed, expected, hub = job(script, limit=limit, tells=told)
            assert printed == expected
            questions[tells] += len(hub.of(3))
    assert questions[True] < 0.8 * questions[False]


def test_a_question_about_an_event_that_lies_ahead_is_asked_once(job):
    """Two collectives decide the event, and the job looks every few microseconds."""
    script = ["c 1", "c 2", "w 0 5", "r 0 1", "w 0 0", "r 1 2", "w 0 1", "r 2 0", *["q 2"] * 20]
    printed, expected, hub = job(script, tells=Exact())
    assert printed == expected and len(hub.of(3)) == 1


def test_a_launch_is_not_asked_about_while_it_takes_as_long_as_an_equal_one_at_least(job):
    """PyTorch asks about each collective right after it has launched it."""
    script = ["c 1", "r 0 1", "q 0", "c 1", "r 0 1", "q 0", "q 0", "c 2", "r 0 2", "q 0"]
    printed, expected, hub = job(script, tells=Exact())
    assert printed == expected and len(hub.of(3)) == 1


def test_whoever_asks_is_told_of_what_was_launched_or_named_after_it_too(job):
    """Ten collectives that are over, and the job looks at one after another: one question for all."""
    script = [x for i in range(10) for x in ("c 1", f"r {i} 1")]
    script += ["k 0 900000", "y 0", *(f"q {i}" for i in range(10))]

    class All(Exact):
        def random(self):
            return 0.0

    printed, expected, hub = job(script, tells=All())
    assert printed == expected and len(hub.of(3)) == 1


def test_without_a_limit_nothing_waits(job):
    printed, expected, _ = job(["k 0 5000"] * 1500 + ["t"], limit=0)
    assert int(printed[-1].split()[1]) < 1500 * 12_000
    assert len(printed) == len(expected)
