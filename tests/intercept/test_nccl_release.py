"""Which NCCL a process has, against the library itself, and what a job asks of a communicator."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nvidia.nccl
import pytest

from tests.intercept.recording_hub import COMM_INIT

FOLDER = Path(next(iter(nvidia.nccl.__path__)))
LIBRARY = FOLDER / "lib" / "libnccl.so.2"
ROOT = Path(__file__).resolve().parents[2]

ASK = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1]) if sys.argv[1:] else None
asked = ctypes.CDLL(None) if OURS else nccl
asked.ncclGetErrorString.restype = ctypes.c_char_p
version = ctypes.c_int()
assert asked.ncclGetVersion(None) == 4
assert asked.ncclGetVersion(ctypes.byref(version)) == 0
print(version.value)
for error in range(-1, 11):
    print(asked.ncclGetErrorString(error).decode())
"""

COMMUNICATOR = """
import ctypes, struct, sys
if sys.argv[2]:
    ctypes.CDLL(sys.argv[2])
lib = ctypes.CDLL(None)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
identity, comm = Id(), ctypes.c_void_p()
config = bytes.fromhex(sys.argv[1]) or None
assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
print(lib.ncclCommInitRankConfig(ctypes.byref(comm), 1, identity, 0, config))
"""


def real_answers():
    """What the wheel's own library says, without us."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    return subprocess.run(
        [sys.executable, "-c", "OURS = False" + ASK, LIBRARY],
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_version_and_words_are_the_librarys_own(run_python, hub):
    assert run_python("OURS = True" + ASK, LIBRARY).stdout == real_answers()


def test_a_process_without_nccl_has_the_measured_one(run_python, hub):
    version, unknown, first, *_ = run_python("OURS = True" + ASK).stdout.splitlines()
    assert (version, unknown, first) == ("22809", "unknown result code", "no error")


@pytest.mark.parametrize("loaded", (False, True))
def test_the_hub_is_told(run_python, hub, loaded):
    run_python(COMMUNICATOR, "", LIBRARY if loaded else "")
    (message,) = hub.of(COMM_INIT)
    assert message[-1] == (int(real_answers().split()[0]) if loaded else 0)


# ---- ncclConfig_t ----

UNSET = -(2**31)


def fields_of(text):
    """The members of the newest ncclConfig_t in a C source, as (type, name)."""
    body = re.findall(r"struct (?:ncclConfig_v\d+|config) \{(.*?)\n\}", text, re.DOTALL)[-1]
    body = re.sub(r"/\*.*?\*/", " ", body, flags=re.DOTALL)
    members = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = re.fullmatch(
            r"((?:const char \*)|(?:unsigned int|\w+) )\s*(.*)", declaration, re.DOTALL
        ).groups()
        kind = kind.strip().replace("unsigned int", "unsigned")
        members += [(kind, name.strip(" *")) for name in names.split(",")]
    return members


def ours():
    return fields_of((ROOT / "libintercept" / "nccl" / "release.c").read_text())


def test_our_view_of_the_configuration_is_that_of_nccl_h():
    """It only ever grew at its end: what the wheel's header has begins ours, or the reverse."""
    theirs = [
        ("int" if name == "magic" else kind, name)
        for kind, name in fields_of((FOLDER / "include" / "nccl.h").read_text())
    ]
    length = min(len(theirs), len(ours()))
    assert length >= 14 and theirs[:length] == ours()[:length]


def configuration(members, size=None, magic=0xCAFEBEEF, **given):
    """An ncclConfig_t of these members, as hexadecimal digits; `size` cuts it."""
    data = bytearray()
    for kind, name in members:
        width = 8 if kind in ("size_t", "const char *") else 4
        data += bytes(-len(data) % width)
        value = given.get(name, 0 if kind == "const char *" else UNSET)
        data += (value % (1 << 8 * width)).to_bytes(width, "little")
    data[:8] = (size or len(data)).to_bytes(8, "little")
    data[8:12] = magic.to_bytes(4, "little")
    return bytes(data[: size or len(data)]).hex()


def test_a_configuration_that_asks_for_nothing_is_silent(run_python, hub):
    for members in (ours(), ours()[:14]):  # the newest, and 2.27's
        assert run_python(COMMUNICATOR, configuration(members), "").stdout == "0\n"
    assert not hub.notes("warning")


def test_what_is_asked_for_and_not_simulated_is_named(run_python, hub):
    asked = configuration(ours(), maxCTAs=8, blocking=0, nChannelsPerNetPeer=4, splitShare=1)
    assert run_python(COMMUNICATOR, asked, "").stdout == "0\n"
    assert hub.notes("warning") == [
        "the job asks NCCL for maxCTAs = 8, which is not simulated",
        "the job asks NCCL for nChannelsPerNetPeer = 4, which is not simulated",
    ]


def test_no_byte_behind_an_older_configuration_is_read(run_python, hub):
    """A 2.27 job's structure ends after 72 bytes; what follows in memory is not its own."""
    asked = configuration(ours(), nChannelsPerNetPeer=4)
    short = (72).to_bytes(8, "little").hex() + asked[16:]
    assert run_python(COMMUNICATOR, short, "").stdout == "0\n"
    assert not hub.notes("warning")


def test_what_is_no_configuration_is_refused(run_python, hub):
    wrong = configuration(ours(), magic=1)
    assert run_python(COMMUNICATOR, wrong, "").stdout == "4\n"
    assert not hub.of(COMM_INIT)


@pytest.mark.parametrize("name", ("ncclCommGrow", "ncclPutSignal", "ncclGetPeerDevicePointer"))
def test_what_newer_releases_added_is_refused_under_any(run_python, hub, name):
    """The job's own library would take our communicator for its own."""
    done = run_python(f"import ctypes; print(ctypes.CDLL(None).{name}(None))")
    assert done.stdout == "5\n" and name in done.stderr
