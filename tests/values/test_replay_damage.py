"""Why it exists: recorded values are a user's file. Whatever is in it, a rank that replays it reads
nothing beyond it and divides by nothing that it says."""

import random
import struct
import subprocess

import pytest

from phantora_ns import protocol

WORDS = [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
MOST = 2**32 - 1


def table(*entries):
    """A table of entries `rank, occurrence, value` of the key "a", whose hash here is its letter."""
    at, texts, lines = 64 + 32 * len(entries), b"", b""
    for rank, occurrence, value in entries:
        text = b"a" + value
        lines += struct.pack("<QQIII", ord("a"), at, rank, occurrence, len(value))
        lines += struct.pack("<HBB", 1, 6, 0)
        texts, at = texts + text, at + len(text)
    magic, version = protocol.VALUE_TABLE_MAGIC, protocol.VALUE_TABLE_VERSION
    header = struct.pack("<QQQQQ", magic, version, len(entries), at, 0)
    return header.ljust(64, b"\0") + lines + texts


SOUND = table((0, 0, b"zero"), (1, 0, b"one"), (1, 1, b"two"))


@pytest.fixture(scope="module")
def read(root, tmp_path_factory):
    """What replay.c finds in each table, one line each."""
    program = tmp_path_factory.mktemp("replay") / "replay"
    flags = ["-std=gnu11", "-O1", "-g", "-w", "-no-pie", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=undefined", "-Wl,--unresolved-symbols=ignore-all"]
    source = root / "tests/values/c/replay_main.c"
    command = ["cc", *flags, f"-I{root / 'libintercept'}", source, "-o", program]
    subprocess.run(command, check=True)

    def ask(tables):
        sent = b"".join(struct.pack("<I", len(data)) + data for data in tables)
        environment = {"ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run([program], input=sent, capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return done.stdout.decode(errors="replace").splitlines()

    return ask


def test_values_repeat_after_the_last_occurrence(read):
    assert read([SOUND]) == ["one two one two two "]


def test_a_table_that_is_not_in_order_divides_by_nothing(read):
    """Its last entry is taken for the last occurrence of the first one's rank."""
    assert read([table((1, 0, b"one"), (0, MOST, b"last"))]) == ["- - - - - "]


def test_no_damage_reaches_beyond_the_table(read):
    source, tables = random.Random(5), []
    for at in range(0, len(SOUND) - 8, 2):
        for word in WORDS:
            changed = struct.pack("<Q", word)[: source.choice([2, 4, 8])]
            tables.append(SOUND[:at] + changed + SOUND[at + len(changed) :])
    tables += [SOUND[:at] for at in range(1, len(SOUND))]
    assert len(read(tables)) == len(tables) > 500
