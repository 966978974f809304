"""Why it exists: `torch.load(mmap=True)` of a checkpoint that is larger than this machine's memory works on the
server that is simulated."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

MAPS = """
import errno, mmap, os, sys
path, size = sys.argv[1], int(sys.argv[2])
file = os.open(path, os.O_RDONLY)
def refusal(*arguments, **how):
    try: mmap.mmap(*arguments, **how)
    except OSError as error: return errno.errorcode[error.errno]
print(refusal(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))  # memory of its own
print(refusal(file, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE))
try: mapped = mmap.mmap(file, size, access=mmap.ACCESS_COPY)
except OSError as error: print(errno.errorcode[error.errno]); sys.exit()
print(mapped[:5], mapped[size - 4:])
mapped[:5] = b"other"
print(mapped[:5], os.pread(file, 5, 0))
"""


@pytest.fixture
def large(tmp_path):
    """A file of twice this machine's memory, of two blocks."""
    path, size = (
        tmp_path / "large",
        2 * (psutil.virtual_memory().total + psutil.swap_memory().total),
    )
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(size - 4)
        file.write(b"last")
    return path, size


def maps(large, **environment):
    done = subprocess.run(
        [sys.executable, "-c", MAPS, *map(str, large)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_private_map_of_a_file_needs_no_memory_until_it_is_written(large, built_library):
    if Path("/proc/sys/vm/overcommit_memory").read_text() == "1\n":
        pytest.skip("this kernel refuses no map")
    assert maps(large) == ["ENOMEM", "EACCES", "ENOMEM"]  # else this test would show nothing
    assert maps(large, LD_PRELOAD=str(built_library)) == [
        "ENOMEM",
        "EACCES",
        "b'begin' b'last'",
        "b'other' b'begin'",
    ]
