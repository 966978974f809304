"""Files of recorded values: one job writes them, another reads them, perhaps on another machine.
Nothing may be lost or confused, and a job that cannot be replayed must be refused at once."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.kernels.signature import fnv1a64
from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.record import recorded_values
from phantora_ns.launch.record.recorded_values import Value
from phantora_ns.protocol import VALUE_RECORD_FILE, VALUE_TABLE_HEADER, ValueTableHeader

REPLAY_KEYS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60
)
RECORDS = st.lists(
    st.tuples(REPLAY_KEYS, st.integers(0, 2**32 - 1), st.integers(0, 11), st.binary(max_size=40)),
    max_size=12,
    unique_by=lambda record: record[:2],
)


def recorded(records):
    """A leader's file, as libintercept/leader/measure/recorded_values.c appends it."""
    parts = []
    for replay_key, occurrence, dtype, data in records:
        text = replay_key.encode()
        parts.append(
            struct.pack("<IIHBB", len(data), occurrence, len(text), dtype, 0) + text + data
        )
    return parts


@given(RECORDS, st.data())
def test_a_file_gives_back_what_was_recorded_as_far_as_it_was(tmp_path_factory, records, data):
    folder = tmp_path_factory.mktemp("values")
    whole = b"".join(recorded(records))
    cut = data.draw(st.integers(0, len(whole)))
    (folder / VALUE_RECORD_FILE).write_bytes(whole[:cut])
    complete = [record for record, end in zip(records, ends(records), strict=True) if end <= cut]
    assert recorded_values.keep(folder, folder / "job.values", 3, {"command": ["x"]}) == len(
        complete
    )
    if complete:
        about, kept = recorded_values.read(folder / "job.values")
        assert about == {"command": ["x"]}
        assert sorted(kept) == sorted(
            Value(replay_key, 3, occurrence, dtype, data)
            for replay_key, occurrence, dtype, data in complete
        )
    else:
        assert not (folder / "job.values").exists()


def ends(records):
    """Where each record ends in the file."""
    at = 0
    for part in recorded(records):
        at += len(part)
        yield at


def test_entries_stand_in_the_order_in_which_ranks_search(tmp_path):
    path = tmp_path / "job.values"
    recorded_values.write(
        path, [Value(f"key {n % 7}", n % 3, n, 0, bytes([n])) for n in range(60)], {}
    )
    raw = path.read_bytes()
    entries = [struct.unpack_from("<QQIIIHBx", raw, 64 + 32 * n) for n in range(60)]
    assert [entry[:1] + entry[2:4] for entry in entries] == sorted(
        entry[:1] + entry[2:4] for entry in entries
    )
    # test vectors of FNV's authors
    assert fnv1a64(b"") == 0xCBF29CE484222325 and fnv1a64(b"a") == 0xAF63DC4C8601EC8C


def test_a_rank_that_leads_again_replaces_its_values_alone(tmp_path):
    into, record = tmp_path / "job.values", tmp_path / VALUE_RECORD_FILE
    for rank, data in ((0, b"old"), (1, b"one"), (0, b"new")):
        record.write_bytes(b"".join(recorded([("q", 0, 0, data)])))
        assert recorded_values.keep(tmp_path, into, rank, {}) == 1
    assert [(value.rank, value.data) for value in recorded_values.read(into)[1]] == [
        (0, b"new"),
        (1, b"one"),
    ]
    record.unlink()
    assert (
        recorded_values.keep(tmp_path, into, 0, {}) == 0 and len(recorded_values.read(into)[1]) == 2
    )


def test_a_damaged_file_is_no_file(tmp_path):
    path = tmp_path / "job.values"
    recorded_values.write(path, [Value("q", 0, 0, 0, b"1234")], {})
    whole = path.read_bytes()
    (tmp_path / VALUE_RECORD_FILE).write_bytes(b"".join(recorded([("q", 0, 0, b"1")])))
    for content in (b"", b"something else", whole[:70], whole[:8] + b"\x02" + whole[9:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="job.values"):
            recorded_values.read(path)
        with pytest.raises(LaunchError, match="job.values"):
            recorded_values.keep(tmp_path, path, 0, {})
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "text, words",
    [
        ("random", "is not one of zeros, balanced, replay"),
        ("zeros:x", "is not one of"),
        ("replay:", "names no file"),
        ("replay:nowhere", "there is no file"),
        ("replay", "no values of this command are recorded"),
        ("replay:/proc/self/stat", "holds no recorded values"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(phantora, tmp_path, text, words):
    done = phantora(
        "--values",
        text,
        "--nnodes",
        1,
        "--gpus-per-node",
        1,
        "--",
        "true",
        env={"XDG_DATA_HOME": str(tmp_path)},
    )
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("meta", [b"[" * 5000, b"9" * 5000, b"\xff"])
def test_what_is_said_of_the_job_may_be_damaged(tmp_path, meta):
    path, run_dir = tmp_path / "job.values", tmp_path / "run"
    recorded_values.write(path, [Value("topk", 0, 0, 4, b"data")], {})
    data = path.read_bytes()
    header = ValueTableHeader.unpack(data)
    sound = data[VALUE_TABLE_HEADER.size : header.meta_offset]
    path.write_bytes(header._replace(meta_bytes=len(meta)).pack() + sound + meta)
    with pytest.raises(ValueError, match="job.values is damaged: "):
        recorded_values.read(path)
    run_dir.mkdir()
    (run_dir / VALUE_RECORD_FILE).write_bytes(b"".join(recorded([("topk", 0, 4, b"data")])))
    with pytest.raises(LaunchError, match="job.values is damaged: "):
        recorded_values.keep(run_dir, path, 1, {})
