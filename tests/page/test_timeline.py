"""The timeline keeps whole steps of whole ranks, within its bound, and says what it leaves out."""

import pytest

from phantora_ns.page import timeline as module
from phantora_ns.page.timeline import timeline


def excerpts(ranks, steps, spans):
    return {
        rank: {
            "steps": [
                {"number": n, "start_ns": 1000 * n, "end_ns": 1000 * n + 1000} for n in range(steps)
            ],
            "rows": [
                {
                    "row": "stream 7",
                    "spans": [
                        [1000 * n + i, 1, f"gemm|{i % 3}"]
                        for n in range(steps)
                        for i in range(spans)
                    ],
                }
            ],
        }
        for rank in range(ranks)
    }


def unpacked(row, names):
    now, spans = 0, []
    for gap, length, kind in zip(row["gaps"], row["lengths"], row["kinds"], strict=True):
        spans.append([now + gap, length, names[kind]])
        now += gap + length
    return spans


def test_everything_comes_back_when_it_fits():
    notes = []
    given = excerpts(2, 3, 10)
    found = timeline(given, [1, 2], notes)
    assert notes == []
    assert [unpacked(row, found["names"]) for row in found["rows"]] == [
        given[rank]["rows"][0]["spans"] for rank in (0, 1)
    ]


@pytest.mark.parametrize("ranks, steps, spans", [(2, 5, 100), (8, 4, 100), (64, 3, 20)])
def test_what_does_not_fit_is_said(monkeypatch, ranks, steps, spans):
    monkeypatch.setattr(module, "MOST_SPANS", 500)
    notes = []
    given = excerpts(ranks, steps, spans)
    found = timeline(given, list(range(1, steps)), notes)
    assert 0 < sum(len(row["gaps"]) for row in found["rows"]) <= 500
    assert len(notes) == 1 and "do not fit" in notes[0]
    typical = range(1, steps)[len(range(1, steps)) // 2]
    for row in found["rows"]:
        spans_of = unpacked(row, found["names"])
        kept = {start // 1000 for start, _, _ in spans_of}
        assert typical in kept
        assert spans_of == [
            span for span in given[row["rank"]]["rows"][0]["spans"] if span[0] // 1000 in kept
        ]
