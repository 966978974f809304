"""Why it exists: a leader derives a kernel's duration from activity records. Here the records are
random, and an obviously right version of the rules in samples.c is the oracle."""

import ctypes
import random
import subprocess
from pathlib import Path

import msgpack
import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = 13
LONGEST_GAP_NS = 2000


class Work(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("correlation", ctypes.c_uint32),
        ("stream", ctypes.c_uint32),
    ]


class External(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64), ("correlation", ctypes.c_uint32)]


class Records(ctypes.Structure):
    _fields_ = [
        ("activity", ctypes.POINTER(Work)),
        ("external", ctypes.POINTER(External)),
        ("activities", ctypes.c_size_t),
        ("work_room", ctypes.c_size_t),
        ("externals", ctypes.c_size_t),
        ("external_room", ctypes.c_size_t),
        ("dropped", ctypes.c_uint64),
        ("implausible", ctypes.c_uint64),
    ]


class Slot(ctypes.Structure):
    _fields_ = [
        ("token", ctypes.c_uint64),
        ("called_ns", ctypes.c_uint64),
        ("returned_ns", ctypes.c_uint64),
        ("what", ctypes.c_void_p),
        ("ended", ctypes.c_bool),
        ("failed", ctypes.c_bool),
        ("wanted", ctypes.c_bool),
        ("clipped", ctypes.c_bool),
        ("activities", ctypes.c_uint32),
        ("stream", ctypes.c_uint32),
        ("first_start", ctypes.c_uint64),
        ("last_end", ctypes.c_uint64),
        ("busy_ns", ctypes.c_uint64),
        ("overlap_ns", ctypes.c_uint64),
    ]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """samples.c and host_costs.c over the harness, as a shared library."""
    target = tmp_path_factory.mktemp("settle") / "settle.so"
    folder = ROOT / "libintercept"
    sources = [
        ROOT / "tests/leader/c/settle.c",
        folder / "leader/measure/samples.c",
        folder / "leader/measure/host_costs.c",
        folder / "base/msgpack.c",
        folder / "work/signature.c",
    ]
    flags = ["-std=gnu11", f"-I{folder}", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", target, *sources, "-lpthread"], check=True)
    return target


@pytest.fixture
def library(built, tmp_path):
    """A fresh copy per test: the store is the library's own state."""
    copy = tmp_path / "settle.so"
    copy.write_bytes(built.read_bytes())
    loaded = ctypes.CDLL(str(copy))
    loaded.settle_signature.restype = ctypes.c_void_p
    loaded.settle_take_sent.restype = ctypes.c_size_t
    loaded.settle_pack_host.restype = ctypes.c_size_t
    loaded.ph_samples_settle.restype = ctypes.c_bool
    loaded.ph_samples_settle.argtypes = [
        ctypes.POINTER(Records),
        ctypes.POINTER(Slot),
        ctypes.c_size_t,
        ctypes.c_bool,
    ]
    loaded.ph_samples_kept.restype = ctypes.c_uint64
    loaded.ph_samples_send_first.argtypes = [ctypes.c_void_p]
    loaded.ph_samples_send.argtypes = [ctypes.c_bool]
    return loaded


class Scene:
    """Calls and activities, handed to ph_samples_settle; activities are (start, end, stream, token or
    None)."""

    def __init__(self, library):
        self.library = library
        self.slots = (Slot * 64)()
        self.used = 0
        self.libc = ctypes.CDLL(None)
        self.libc.malloc.restype = ctypes.c_void_p
        self.records = Records()

    def call(self, kind, number, *, ended=True, failed=False, wanted=False, called=0, returned=0):
        """A call of signature `number`; returns its token."""
        slot = self.slots[self.used]
        self.used += 1
        slot.token = 100 + self.used
        slot.what = self.library.settle_signature(kind, number)
        slot.ended, slot.failed, slot.wanted, slot.called_ns, slot.returned_ns = (
            ended,
            failed,
            wanted,
            called,
            returned,
        )
        return slot.token

    def settle(self, activities, *, idle=True, shuffle=None):
        """Settles `activities` beside what an earlier call has left; returns the left-over activities'
        starts."""
        left = [
            (w.start, w.end, w.stream, w.correlation)
            for w in self.records.activity[: self.records.activities]
        ]
        known = {e.correlation: e.id for e in self.records.external[: self.records.externals]}
        rows = [
            (*w[:3], c) for c, w in enumerate(activities, start=1 + max([0, *(r[3] for r in left)]))
        ]
        externals = known | {
            row[3]: work[3]
            for row, work in zip(rows, activities, strict=True)
            if work[3] is not None
        }
        rows += left
        order = list(externals.items())
        if shuffle:
            shuffle.shuffle(rows)
            shuffle.shuffle(order)
        self.work_array = (Work * (len(rows) + 1))(*[Work(s, e, c, st) for s, e, st, c in rows])
        self.external_array = (External * (len(order) + 1))(*[External(i, c) for c, i in order])
        self.records = Records(
            self.work_array,
            self.external_array,
            len(rows),
            len(rows) + 1,
            len(order),
            len(order) + 1,
            0,
            0,
        )
        self.library.ph_samples_settle(ctypes.byref(self.records), self.slots, 64, idle)
        return sorted(w.start for w in self.records.activity[: self.records.activities])

    def sent(self, everything=True):
        """{signature number: durations} of the MEASURED messages of a batch."""
        self.library.ph_samples_send(everything)
        buffer = ctypes.create_string_buffer(1 << 20)
        length = self.library.settle_take_sent(buffer, len(buffer))
        unpacker = msgpack.Unpacker()
        unpacker.feed(buffer.raw[:length])
        found = {}
        for message in unpacker:
            assert message[0] == MEASURED
            for _kind, fields, context, durations in message[2]:
                assert context is None
                found.setdefault(fields[0], []).extend(durations)
        return found


def expected_duration(activities, all_activities):
    """The rule: durations, and gaps of at most LONGEST_GAP_NS; what overlaps inside of the call
    counts once, and what its first work overlaps the work ahead in its stream does not count."""
    total, end = 0, None
    for start, stop, *_ in sorted(activities):
        if end is None:
            total, end = stop - start, stop
            continue
        total += min(max(start - end, 0), LONGEST_GAP_NS) + max(stop - max(start, end), 0)
        end = max(end, stop)
    first = min(activities)
    ahead = [w[1] for w in all_activities if w[2] == first[2] and w[:2] < first[:2]]
    return max(total - max(0, min(max(ahead, default=0), first[1]) - first[0]), 1)


def overlapped(activities, all_activities):
    """The rule: work of other streams ran beside more than a hundredth of the call's span."""
    span = max(w[1] for w in activities) - min(w[0] for w in activities)
    beside = sum(
        max(0, min(a[1], b[1]) - max(a[0], b[0]))
        for a in activities
        for b in all_activities
        if a[2] != b[2]
    )
    return beside * 100 > span


@pytest.mark.parametrize("seed", range(40))
def test_random_records_against_the_rules(library, seed):
    rng = random.Random(seed)
    scene, activities, by_token, number_of = Scene(library), [], {}, {}
    for number in range(30):
        token, stream = scene.call(rng.choice([0, 1, 2]), number), rng.choice([7, 7, 7, 13])
        at, own = rng.randrange(1, 600_000), []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            end = at + rng.choice([100, 1000, 20_000])
            own.append((at, end, stream, token))
            at = end + rng.choice([0, 300, 1999, 2000, 2001, 9000])
        activities += own
        by_token[token], number_of[token] = own, number
    activities += [
        (at, at + rng.randrange(1, 500), 20, None) for at in rng.sample(range(1, 600_000), 5)
    ]
    scene.settle(activities, shuffle=rng)
    wanted = {
        number_of[t]: [expected_duration(own, activities)]
        for t, own in by_token.items()
        if not overlapped(own, activities)
    }
    assert scene.sent() == wanted
    assert wanted, "the scene must leave something to compare"


def test_the_first_sample_goes_only_if_nothing_follows(library):
    scene = Scene(library)
    tokens = [scene.call(0, 1), scene.call(0, 1), scene.call(0, 2)]
    scene.settle(
        [(1000, 1900, 7, tokens[0]), (3000, 3100, 7, tokens[1]), (5000, 5050, 7, tokens[2])]
    )
    assert library.ph_samples_kept() == 1
    assert scene.sent(everything=False) == {1: [100]}
    assert scene.sent(everything=True) == {2: [50]}
    assert scene.sent(everything=True) == {}


def test_a_first_sample_that_is_waited_for_goes_at_once_and_once(library):
    scene = Scene(library)
    token = scene.call(0, 1, wanted=True)
    scene.settle([(1000, 1900, 7, token)])
    library.ph_samples_send_first(library.settle_signature(0, 1))
    assert scene.sent(everything=False) == {1: [900]}
    assert scene.sent(everything=True) == {}


def test_calls_that_other_threads_are_in_keep_their_records(library):
    scene = Scene(library)
    done, inside = scene.call(0, 1), scene.call(0, 2, ended=False)
    assert scene.settle([(1000, 1100, 7, done), (2000, 2300, 7, inside)]) == [2000]
    assert scene.sent() == {1: [100]}
    scene.slots[1].ended = True
    assert scene.settle([(2400, 2500, 7, inside)]) == []
    assert scene.sent() == {2: [500]}


def test_records_that_have_not_come_are_waited_for_only_while_work_is_unfinished(library):
    scene = Scene(library)
    token = scene.call(0, 1)
    scene.settle([], idle=False)
    assert scene.slots[0].token == token
    scene.settle([(10, 60, 7, token)])
    assert scene.sent() == {1: [50]}
    scene.call(0, 2)
    scene.settle([])
    assert scene.slots[1].token == 0 and scene.sent() == {}


def test_failed_calls_give_no_samples(library):
    scene = Scene(library)
    token = scene.call(1, 1, failed=True)
    scene.settle([(10, 60, 7, token)])
    assert scene.sent() == {} and scene.slots[0].token == 0


def test_latency_of_idle_streams_and_gaps_of_full_ones(library):
    scene = Scene(library)
    first = scene.call(0, 1, called=1_000, returned=2_000)
    idle = scene.call(0, 2, called=500_000, returned=502_000)
    queued = scene.call(0, 3, called=503_000, returned=504_000)
    late = scene.call(0, 4, called=598_000, returned=599_500)
    scene.settle(
        [
            (5_000, 6_000, 7, first),  # nothing is known of the stream before: no latency
            (504_500, 540_000, 7, idle),  # 4,500 ns after its call
            # issued long before the end of the one ahead: a gap of 1,200 ns
            (
                541_200,
                600_000,
                7,
                queued,
            ),
            (600_900, 601_000, 7, late),  # issued 500 ns before that end: neither
        ]
    )
    buffer = ctypes.create_string_buffer(1024)
    length = library.settle_pack_host(buffer, len(buffer))
    host = msgpack.unpackb(buffer.raw[:length])
    assert host == {"latency": [1, 4500, 4500], "gap": [1, 1200, 1200]}


class Distribution(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint64), ("kept", ctypes.c_uint32 * 4096)]


def test_a_distribution_leaves_outliers_out_of_its_mean_and_repeats(library):
    def read(values):
        distribution, mean, median = Distribution(), ctypes.c_uint64(), ctypes.c_uint64()
        for value in values:
            library.ph_distribution_add(ctypes.byref(distribution), ctypes.c_uint64(value))
        library.ph_distribution_read(
            ctypes.byref(distribution), ctypes.byref(mean), ctypes.byref(median)
        )
        return distribution.count, mean.value, median.value

    assert read([]) == (0, 0, 0)
    assert read([100, 200, 300, 1_000_000]) == (4, 200, 300)
    rng = random.Random(1)
    values = [rng.randrange(900, 1100) for _ in range(50_000)]
    count, mean, median = read(values)
    assert count == 50_000 and abs(mean - 1000) < 5 and abs(median - 1000) < 10
    assert read(values) == (count, mean, median)
