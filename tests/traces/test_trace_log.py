"""Logs end anywhere: what is whole is read, what is damaged is said to be."""

import struct

import pytest

from phantora_ns.protocol import LOG_CHUNK_BYTES, LogCall, LogRecord, Moment
from phantora_ns.trace import sort as trace_sort
from phantora_ns.trace.log import Log
from phantora_ns.trace.sort import EventSorter


def record(kind, payload, thread=1):
    length = (8 + len(payload) + 7) // 8 * 8
    return struct.pack("<HHI", kind, thread, length) + payload.ljust(length - 8, b"\0")


START_RECORD = record(LogRecord.START, struct.pack("<Iiiiii", 1, 3, 8, 1, 77, 0))


def call(number):
    return record(
        LogRecord.CALL, struct.pack("<IIQQqQq", 1, number, 0, 0, 10 * number, 0, 10 * number + 5)
    )


def write(path, *chunks):
    path.write_bytes(b"".join(chunk.ljust(LOG_CHUNK_BYTES, b"\0") for chunk in chunks))
    return path


def test_records_go_on_in_the_next_chunk_where_one_ends(tmp_path):
    text = record(LogRecord.TEXT, struct.pack("<II", 1, 5) + "laün".encode())
    log = Log(write(tmp_path / "x.log", START_RECORD + text + call(1), call(2) + call(3)))
    assert (log.start.rank, log.start.world_size, log.start.node, log.start.pid) == (3, 8, 1, 77)
    kinds = [(kind, thing) for kind, _, thing in log.records()]
    assert kinds == [(LogRecord.TEXT, (1, "laün"))] + [
        (LogRecord.CALL, LogCall(1, n, 0, Moment(0, 10 * n), Moment(0, 10 * n + 5)))
        for n in (1, 2, 3)
    ]
    log.close()


def test_a_step_that_moves_is_where_it_was_said_last(tmp_path):
    marks = [
        record(LogRecord.STEP, struct.pack("<QQq", number, 4, offset), 2)
        for number, offset in ((1, 10), (1, 20), (2, 30))
    ]
    log = Log(write(tmp_path / "x.log", START_RECORD + b"".join(marks)))
    assert log.steps() == {1: (Moment(4, 20), 2), 2: (Moment(4, 30), 2)}


def test_what_is_no_log_is_refused(tmp_path):
    other = record(LogRecord.START, struct.pack("<Iiiiii", 2, 3, 8, 1, 77, 0))
    for content in (b"", call(1), other):
        with pytest.raises(ValueError, match="no log of version 1"):
            Log(write(tmp_path / "x.log", content))
    (tmp_path / "short.log").write_bytes(b"x")
    with pytest.raises(ValueError, match="no log of a process's work"):
        Log(tmp_path / "short.log")


@pytest.mark.parametrize("length", [0, 4, LOG_CHUNK_BYTES])
def test_a_damaged_record_is_no_endless_loop(tmp_path, length):
    log = Log(
        write(tmp_path / "x.log", START_RECORD + struct.pack("<HHI", LogRecord.CALL, 1, length))
    )
    with pytest.raises(ValueError, match="a damaged record at byte 32"):
        list(log.records())


@pytest.mark.parametrize("most", [3, 1000])
def test_events_come_by_time_and_the_longest_first(tmp_path, monkeypatch, most):
    monkeypatch.setattr(trace_sort, "MOST_LINES", most)
    sorter = EventSorter(tmp_path)
    events = [
        (5, 1, "e"),
        (5, 9, "d"),
        (1, 1, "a"),
        (2, 0, "c"),
        (2, 0, "b"),
        (1 << 59, 0, "g"),
        (7, 3, "f"),
    ]
    for begin_ns, duration_ns, text in events:
        sorter.add(begin_ns, duration_ns, text)
    assert "".join(sorter.texts()) == "abcdefg" and sorter.count == 7
    sorter.close()
    assert list(tmp_path.iterdir()) == []
