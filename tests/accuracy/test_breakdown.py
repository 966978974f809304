"""Why it exists: the parts of a step are only worth adding up if each nanosecond has exactly one
owner."""

from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.trace.breakdown import Breakdown, own
from phantora_ns.trace.kineto import Activity, Collective, Step

GATHER = Collective("all_gather", 64, 8)


@st.composite
def activities(draw):
    made = []
    for _ in range(draw(st.integers(0, 20))):
        start = draw(st.integers(0, 60))
        launched = draw(st.one_of(st.none(), st.integers(-5, start)))
        made.append(
            Activity(
                "k",
                "kernel",
                draw(st.integers(0, 2)),
                start,
                start + draw(st.integers(0, 15)),
                launched,
                collective=draw(st.sampled_from([None, None, GATHER])),
            )
        )
    return made


def owners(made, step):
    """The obviously right answer, one nanosecond after the other: index of the owner, or the kind
    of idle time."""
    found = []
    for now in range(step.start_ns, step.end_ns):
        running = [i for i, a in enumerate(made) if a.start_ns <= now < a.end_ns]
        compute = [i for i in running if made[i].collective is None]
        if running:
            found.append(min(compute or running, key=lambda i: (made[i].start_ns, i)))
            continue
        began = now
        while began > step.start_ns and not any(a.start_ns <= began - 1 < a.end_ns for a in made):
            began -= 1
        coming = [a for a in made if a.start_ns > now and a.end_ns > a.start_ns]
        first = min(coming, key=lambda a: a.start_ns, default=None)
        if first is None or first.start_ns > step.end_ns:
            found.append("host")
        elif first.launched_ns is None:
            found.append("unknown")
        else:
            found.append("host" if first.launched_ns > began else "queued")
    return found


@given(activities(), st.integers(0, 30), st.integers(1, 60))
def test_every_nanosecond_has_the_owner_that_counting_gives_it(made, start, length):
    step = Step(None, start, start + length)
    result = own(made, step)
    expected = owners(made, step)
    index = {id(a): i for i, a in enumerate(made)}
    for activity, owned in zip(result.activities, result.owned_ns, strict=True):
        assert owned == expected.count(index[id(activity)])
    parts = result.parts
    assert (parts.idle_host_ns, parts.idle_queued_ns, parts.idle_unknown_ns) == tuple(
        expected.count(kind) for kind in ("host", "queued", "unknown")
    )
    assert parts.compute_ns + parts.exposed_ns + parts.idle_ns == parts.step_ns == length
    assert sum(result.owned_ns) == parts.compute_ns + parts.exposed_ns
    both = sum(
        any(a.start_ns <= t < a.end_ns and a.collective for a in made)
        and any(a.start_ns <= t < a.end_ns and not a.collective for a in made)
        for t in range(start, start + length)
    )
    assert parts.hidden_ns == both


def test_steps_add_up():
    total = Breakdown()
    made = [
        Activity("k", "kernel", 0, 5, 10, 4),
        Activity("c", "kernel", 1, 8, 14, 4, collective=GATHER),
    ]
    for step in (Step(0, 0, 9), Step(1, 9, 20)):
        total.add(own(made, step).parts)
    assert (total.step_ns, total.compute_ns, total.hidden_ns, total.exposed_ns, total.idle_ns) == (
        20,
        5,
        2,
        4,
        11,
    )
    assert total.communication_ns == 6 and total.kernel_sum_ns == 5
