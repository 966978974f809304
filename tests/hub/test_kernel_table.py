"""The kernel table as a rank reads it: by linear probing from the key's slot."""

import random
import struct

import inprocess
import msgpack
import pytest

from phantora_ns.hub.kernel_table import MAX_FILL, KernelTable
from phantora_ns.protocol import (
    KERNEL_TABLE_FILE,
    KERNEL_TABLE_HEADER,
    KERNEL_TABLE_SLOT,
    Message,
    SourceFlag,
)


def find(data: bytes, key: int):
    """What a rank does, in its own words: (duration, source, class), or None."""
    magic, version, capacity, _ = struct.unpack_from("<4Q", data)
    assert (magic, version) == (0x50484E534B524E4C, 2)
    index = key & (capacity - 1)
    while True:
        found, duration, source, bound_by = struct.unpack_from(
            "<QQII", data, KERNEL_TABLE_HEADER.size + index * KERNEL_TABLE_SLOT.size
        )
        if found == key:
            return duration, source, bound_by
        if found == 0:
            return None
        index = (index + 1) % capacity


@pytest.fixture
def table(tmp_path):
    made = KernelTable(tmp_path / "kernels.tbl", 64)
    yield made
    made.close()


def test_what_is_put_is_found_and_the_table_never_fills_up(table, tmp_path):
    rng = random.Random(1)
    keys = [
        rng.choice([5, 69, 133, 2**64 - 1]) + 64 * rng.randrange(2**50) & 2**64 - 1
        for _ in range(90)
    ]
    stored = {
        key: (key % 10_007, 3, key & 1) for key in keys if table.put(key, key % 10_007, 3, key & 1)
    }
    data = (tmp_path / "kernels.tbl").read_bytes()
    assert len(data) == KERNEL_TABLE_HEADER.size + 64 * KERNEL_TABLE_SLOT.size
    assert {key: find(data, key) for key in stored} == stored
    assert len(stored) == table.count == 64 * MAX_FILL
    assert all(find(data, key) is None for key in keys if key not in stored)


def test_the_first_duration_stays(table, tmp_path):
    assert table.put(9, 100, 0, 1) and table.put(9, 200, 7, 0)
    assert find((tmp_path / "kernels.tbl").read_bytes(), 9) == (100, 0, 1) and table.count == 1


def test_a_capacity_that_is_no_power_of_two_is_refused(tmp_path):
    with pytest.raises(ValueError):
        KernelTable(tmp_path / "kernels.tbl", 100)


def test_a_record_of_other_library_versions_is_flagged_in_answer_and_table(tmp_path, monkeypatch):
    made = inprocess.Bench(tmp_path)
    try:
        made.hello(b"0", 0)
        for key, elsewhere in ((7, False), (8, True)):
            monkeypatch.setattr(
                inprocess.NoTimes, "recorded_elsewhere", lambda *_, answer=elsewhere: answer
            )
            made.outbox.clear()
            message = [Message.LOOKUP, key - 5, key, 0, key, 4, ["call", [key]]]
            made.hub.handle(b"0", msgpack.packb(message))
            ((_, (_, _, _, source, *_)),) = made.outbox
            assert source == 7 | (SourceFlag.ELSEWHERE if elsewhere else 0)
        data = (tmp_path / KERNEL_TABLE_FILE).read_bytes()
        assert find(data, 7)[1] == 7 and find(data, 8)[1] == 7 | SourceFlag.ELSEWHERE
    finally:
        made.close()
