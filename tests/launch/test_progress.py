"""The progress line: simulated time, real time, slow-down, ranks."""

import pytest

from phantora_ns.launch.run.progress import format_duration, format_line


def test_progress_line():
    assert format_line([], 1.0, 8) == "simulated 0 | real 1 s | 0/8 ranks up"
    assert (
        format_line([2_000_000, 4_000_000], 2.0, 8)
        == "simulated 2 ms to 4 ms | real 2 s | slow-down 500x | 2/8 ranks up"
    )
    assert (
        format_line([5_000_000_000], 0.5, 1)
        == "simulated 5 s | real 500 ms | slow-down 0.1x | 1/1 ranks up"
    )


@pytest.mark.parametrize(
    "ns, text",
    [
        (0, "0 us"),
        (1500, "1.5 us"),
        (999_999, "1000 us"),
        (1_000_000, "1 ms"),
        (59_900_000_000, "59.9 s"),
        (60_000_000_000, "1 min 00 s"),
        (3_725_000_000_000, "62 min 05 s"),
    ],
)
def test_durations(ns, text):
    assert format_duration(ns) == text
