"""Who waits for whom, from arrivals that are written down."""

from phantora_ns.page.waits import waits


def launches(arrivals, end, members=None):
    """{rank: launches} of one collective at a time: arrivals[rank][i], ending at end[i]."""
    return {
        rank: [
            {
                "communicator": 1,
                "start_ns": at,
                "end_ns": end[index],
                "members": members or len(arrivals),
            }
            for index, at in enumerate(found)
        ]
        for rank, found in arrivals.items()
    }


def test_the_last_to_come_is_waited_for():
    found = waits(launches({0: [10, 100], 1: [40, 130], 2: [25, 190]}, [50, 200]), 0, 1000)
    assert found["ranks"] == [0, 1, 2] and found["collectives"] == 2
    assert found["last"] == [0, 1, 1]
    assert found["waited_ns"] == [[0, 30, 90], [0, 0, 60], [0, 15, 0]]
    assert found["caused_ns"] == [0, 45, 150]


def test_a_straggler_stands_out():
    steady = {rank: [100 * step for step in range(10)] for rank in range(4)}
    ends = [100 * step + 60 for step in range(10)]
    assert waits(launches(steady, ends), 0, 1000)["straggler"] is None
    steady[2] = [at + 50 for at in steady[2]]
    found = waits(launches(steady, ends), 0, 1000)
    assert found["straggler"] == 2 and found["last"][2] == 10
    steady[3] = [at + 45 for at in steady[3]]  # two of them: neither stands out
    steady[2][::2] = [at - 50 for at in steady[2][::2]]
    assert waits(launches(steady, ends), 0, 1000)["straggler"] is None


def test_what_is_seen_in_part_is_counted_as_such():
    found = waits(launches({0: [10], 1: [20]}, [30], members=8), 0, 100)
    assert (found["collectives"], found["partly_seen"]) == (1, 1)
    assert waits(launches({0: [10]}, [30], members=8), 0, 100)["collectives"] == 0
    assert waits(launches({0: [10], 1: [20]}, [30]), 30, 100)["collectives"] == 1
    assert waits(launches({0: [10], 1: [20]}, [30]), 0, 30)["collectives"] == 0


def test_ranks_that_come_last_together_share_the_others_waiting():
    """Nobody of them is a straggler, whatever its number is."""
    found = waits(launches({0: [10, 100], 1: [41, 160], 2: [41, 160]}, [50, 200]), 0, 201)
    assert found["last"] == [0, 2, 2]
    assert found["waited_ns"][0] == [0, 16 + 30, 15 + 30], "to the nanosecond"
    assert found["straggler"] is None
    together = waits(launches({0: [10], 1: [10]}, [50]), 0, 200)
    assert together["last"] == [0, 0], "they came at once"
