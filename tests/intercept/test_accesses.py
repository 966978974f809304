"""Why it exists: what the interceptor reads from the machine code of kernels that are compiled at run time is
recorded with their times. Here kernels are written in PTX, so that it is known what they do, and compiled by NVIDIA's
assembler for several compute capabilities."""

import ctypes
import functools
import subprocess
from pathlib import Path

import pytest
import triton.backends.nvidia as nvidia
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.intercept.parts import load_part

STUBS = """
#include "base/msgpack.h"
#include "work/accesses.h"
#include "work/cubin.h"
void ph_pack_array(struct ph_pack *pack, uint32_t count) { (void)pack, (void)count; }
void ph_pack_uint(struct ph_pack *pack, uint64_t value) { (void)pack, (void)value; }
struct ph_accesses accesses_in(const void *image, size_t bytes)
{
    struct ph_cubin cubin;
    if (!ph_cubin_open(&cubin, image, bytes)) return (struct ph_accesses){0};
    for (unsigned i = 0; i < cubin.header.e_shnum; i++) {
        Elf64_Shdr section = ph_cubin_section(&cubin, i);
        if (ph_cubin_code_of(&cubin, &section))
            return ph_accesses_of(&cubin, &section);
    }
    return (struct ph_accesses){0};
}
"""
ASSEMBLERS = Path(nvidia.__file__).parent / "bin"
TARGETS = {80: ("ptxas", "8.0"), 90: ("ptxas", "8.0"), 100: ("ptxas-blackwell", "8.6")}
"""Compute capability -> its assembler, and the version of PTX that knows it."""
KINDS = ("read", "read_kept", "read_narrow", "written", "written_narrow", "atomic")
TYPES = {2: "u16", 4: "u32", 8: "v2.u32", 16: "v4.u32"}
STEP = 32


class Accesses(ctypes.Structure):
    """struct ph_accesses"""

    _fields_ = (
        ("known", ctypes.c_bool),
        ("total", ctypes.c_uint64 * 8),
        ("per_trip", ctypes.c_uint64 * 8),
    )

    def bytes(self, which):
        return dict(zip(KINDS, getattr(self, which), strict=False))


@pytest.fixture(scope="module")
def accesses_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accesses")
    function = load_part(folder, ["work/accesses.c", "work/cubin.c"], STUBS).accesses_in
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_size_t), Accesses
    return lambda image: function(image, len(image))


def assemble(body: str, capability: int) -> bytes:
    """The cubin of a kernel with this body. %p is its input and %q its output, 4 MiB apart for each thread."""
    assembler, version = TARGETS[capability]
    text = f"""
.version {version}
.target sm_{capability}
.address_size 64
.visible .entry kernel(.param .u64 in, .param .u64 out, .param .u32 count)
{{
    .reg .b64 %p, %q, %at;
    .reg .b32 %t, %i, %n, %sum, %v<5>;
    .reg .b16 %h;
    .reg .pred %c;
    ld.param.u64 %p, [in];
    ld.param.u64 %q, [out];
    ld.param.u32 %n, [count];
    cvta.to.global.u64 %p, %p;
    cvta.to.global.u64 %q, %q;
    mov.u32 %t, %tid.x;
    mad.wide.u32 %p, %t, 4194304, %p;
    mad.wide.u32 %q, %t, 4194304, %q;
    mov.u32 %sum, 0;
    mov.u32 %i, 0;
    mov.b64 %at, %p;
{body}
    st.global.u32 [%q+4190000], %sum;
    ret;
}}
"""
    command = [ASSEMBLERS / assembler, f"-arch=sm_{capability}", "-o", "/dev/stdout", "-"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout


def load(size: int, offset: int, kept: bool) -> str:
    how = ".L1::evict_last" if kept else ""
    if size == 2:
        return (
            f"ld.global{how}.u16 %h, [%at+{offset}]; cvt.u32.u16 %v0, %h; xor.b32 %sum, %sum, %v0;"
        )
    values = [f"%v{i}" for i in range(size // 4)]
    into = f"{{{', '.join(values)}}}" if len(values) > 1 else values[0]
    mixed = " ".join(f"xor.b32 %sum, %sum, {value};" for value in values)
    return f"ld.global{how}.{TYPES[size]} {into}, [%at+{offset}]; {mixed}"


def store(size: int, offset: int) -> str:
    if size == 2:
        return f"cvt.u16.u32 %h, %sum; st.global.u16 [%q+{offset}], %h;"
    values = ", ".join(["%sum"] * (size // 4))
    into = f"{{{values}}}" if size > 4 else values
    return f"st.global.{TYPES[size]} [%q+{offset}], {into};"


def looped(body: str, until: str, compared_first: bool = False) -> str:
    """A loop whose counter grows by STEP up to `until`, and is compared after it has grown or before."""
    parts = [
        f"add.u32 %i, %i, {STEP};\n    mad.wide.u32 %at, %i, 4096, %p;",
        f"setp.lt.u32 %c, %i, {until};",
    ]
    return f"""
$loop:
    .pragma "nounroll";
{body}
    {parts[compared_first]}
    {parts[not compared_first]}
    @%c bra $loop;
"""


accesses = st.lists(
    st.tuples(st.sampled_from(["load", "kept", "store"]), st.sampled_from(list(TYPES))),
    min_size=1,
    max_size=6,
)


def written_out(chosen, loaded_from=0) -> tuple[str, dict[str, int]]:
    """(PTX that makes the chosen accesses one after the other, the bytes of each kind that it moves)."""
    lines, wanted = [], dict.fromkeys(KINDS, 0)
    for i, (what, size) in enumerate(chosen):
        offset = 64 * i + loaded_from
        if what == "store":
            lines.append(store(size, offset))
            wanted["written" if size >= 8 else "written_narrow"] += size
        else:
            kept = what == "kept"
            lines.append(load(size, offset, kept))
            wide = "read_kept" if kept else "read"
            wanted[wide if size >= 8 else "read_narrow"] += size
    return "\n".join(lines), wanted


@pytest.mark.parametrize("capability", TARGETS)
@settings(max_examples=8, deadline=None)
@given(chosen=accesses, inside=accesses, trips=st.integers(2, 100))
def test_every_access_counts_as_often_as_it_runs(accesses_in, capability, chosen, inside, trips):
    before, straight = written_out(chosen, loaded_from=2048)
    body, each = written_out(inside)
    found = accesses_in(assemble(f"{before}\n{looped(body, str(trips * STEP))}", capability))
    straight["written_narrow"] += 4  # the sum, at the end
    wanted = {kind: straight[kind] + trips * each[kind] for kind in KINDS}
    assert found.known
    assert found.bytes("total") == wanted
    assert not any(found.per_trip)
    assert found.total[6] > trips * len(inside)


@pytest.mark.parametrize("capability", TARGETS)
def test_a_counter_that_is_compared_before_it_grows(accesses_in, capability):
    body = looped(load(16, 0, False), str(9 * STEP), compared_first=True)
    assert accesses_in(assemble(body, capability)).bytes("total")["read"] == 160


@pytest.mark.parametrize("capability", TARGETS)
def test_a_loop_that_does_not_say_how_often_it_runs_is_told_apart(accesses_in, capability):
    body, each = written_out([("load", 16), ("store", 8)])
    found = accesses_in(assemble(looped(body, "%n"), capability))
    assert found.bytes("per_trip") == each
    assert found.bytes("total") == dict.fromkeys(KINDS, 0) | {"written_narrow": 4}


@pytest.mark.parametrize("capability", TARGETS)
def test_atomic_operations_are_a_kind_of_their_own(accesses_in, capability):
    body = "\n".join(
        [
            "red.global.add.u32 [%q], %t;",
            "atom.global.exch.b32 %v0, [%q+64], %t;",
            "atom.global.add.u32 %v1, [%q+128], %t;",
            "xor.b32 %sum, %v0, %v1;",
        ]
    )
    assert accesses_in(assemble(body, capability)).bytes("total")["atomic"] == 3


@pytest.mark.parametrize("capability", TARGETS)
def test_special_functions_count_as_often_as_they_run(accesses_in, capability):
    body = f"{load(4, 0, False)} ex2.approx.ftz.f32 %v1, %v0; xor.b32 %sum, %sum, %v1;"
    found = accesses_in(assemble(looped(body, str(5 * STEP)), capability))
    assert found.total[7] == 5


@pytest.mark.parametrize("capability", TARGETS)
@pytest.mark.parametrize(
    ("inside", "counts"),
    [
        ("ld.global.nc.u32 %v0, [%at]; xor.b32 %sum, %sum, %v0;", False),
        ("mul.lo.u32 %sum, %sum, %n;", False),
        (load(4, 0, False), True),
        (store(2, 0), True),
    ],
)
def test_a_path_that_a_branch_skips_counts_unless_it_only_computes(
    accesses_in, capability, inside, counts
):
    rare = f"""
    setp.lt.u32 %c, %n, 1000000;
    @%c bra $common;
{looped(inside, str(6 * STEP))}
$common:
"""
    found = accesses_in(assemble(rare, capability)).bytes("total")
    assert found["read_narrow"] + found["written_narrow"] - 4 == (
        {load(4, 0, False): 24, store(2, 0): 12}[inside] if counts else 0
    )


@pytest.mark.parametrize("capability", TARGETS)
def test_a_comparison_that_another_replaces_is_no_counter(accesses_in, capability):
    """The loop runs %n times. It also compares its counter with a constant, to choose whether it stores."""
    chooses = "setp.lt.u32 %c, %i, 4096; @%c st.global.u32 [%q], %sum;"
    found = accesses_in(assemble(looped(f"{load(16, 0, False)}\n{chooses}", "%n"), capability))
    assert found.bytes("per_trip")["read"] == 16
    assert found.bytes("total")["read"] == 0


def test_foreign_bytes_say_nothing(accesses_in):
    image = assemble(load(16, 0, False), 90)
    for damaged in (b"", image[:100], b"x" * len(image), image[: len(image) // 2]):
        assert not accesses_in(damaged).known


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_code_is_read_to_its_end(accesses_in, data):
    image = bytearray(a_loop())
    for _ in range(data.draw(st.integers(1, 40))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    accesses_in(bytes(image))


@functools.cache
def a_loop() -> bytes:
    return assemble(looped(load(8, 0, False), "64"), 90)
