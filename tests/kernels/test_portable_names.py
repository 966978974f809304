"""A kernel's name must be the same in every build of one PyTorch release:
libintercept/work/kernel_name.c.

The oracle is a regular expression over the whole identifier whose length the name itself gives,
tried on names made up with different hashes, and on every kernel of the installed torch: none may
keep a hash, and no two may become one.
"""

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HASHED = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_")


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    """A function from names to their portable forms, through the compiled C."""
    program = tmp_path_factory.mktemp("names") / "portable_names"
    subprocess.run(
        [
            shutil.which("cc"),
            "-std=gnu11",
            f"-I{ROOT}/libintercept",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            program,
            ROOT / "tests/kernels/portable_names.c",
            ROOT / "libintercept/work/kernel_name.c",
        ],
        check=True,
    )

    def run(names):
        done = subprocess.run(
            [program], input="\n".join(names) + "\n", stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.splitlines()

    return run


def build(source, before, rest, numbered):
    """The mangled name that one build gives to a function of `source`: hashes drawn anew."""
    mangled = f"_GLOBAL__N__{random.getrandbits(32):08x}_{len(source)}_{source}_{random.getrandbits(32):08x}"
    if numbered:
        mangled += f"_{random.randrange(10 ** random.randrange(1, 8))}"
    return f"_ZN2at6native{before}{len(mangled)}{mangled}{rest}"


def test_builds_agree_and_files_do_not(portable):
    random.seed(1)
    cases = [
        (source, before, rest, numbered)
        for source in ("Copy_cu", "ActivationThresholdKernel_cu", "x1_cu")
        for before in ("", "4foo2", "NS0_", "5abc99")
        for rest in ("21threshold_kernel_implIfEv", "3runEv", "EE")
        for numbered in (False, True)
    ]
    for case in cases:
        forms = set(portable([build(*case) for _ in range(50)]))
        # (a number at the end of the first kind of name and the length that follows it are told
        # apart by the length before)
        assert len(forms) == 1 and not HASHED.search(forms.pop())
    assert len(set(portable([build(*case[:3], False) for case in cases]))) == len(
        {case[:3] for case in cases}
    )


def test_other_names_stay(portable):
    names = [
        "_Z9vectorAddPKfS0_Pfi",
        "triton_poi_fused_add_0",
        "_ZN12_GLOBAL__N_11aEv",
        "_ZN99_GLOBAL__N__zzEv",
        "_GLOBAL__N__",
    ]
    assert portable(names) == names


def test_every_kernel_of_torch(portable):
    torch = pytest.importorskip("torch")
    from phantora_ns.kernels.binary.fatbin import ensure_kernel_info

    data = Path(ensure_kernel_info(Path(torch.__file__).parent / "lib", 90)).read_bytes()
    names = sorted({name.decode() for name in re.findall(rb"_Z[\w$.]{5,}", data)})
    hashed = [name for name in names if HASHED.search(name)]
    assert len(hashed) > 1000
    forms = portable(names)
    assert not [form for form in forms if HASHED.search(form)]
    assert len(set(forms)) == len(names)
