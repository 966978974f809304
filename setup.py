"""Why it exists: `pip install .` must compile the C parts, by the Makefile's rules and no second
copy of them.

Everything declarative is in pyproject.toml. Rule: this file decides only *where* the results go and
*which* Python's torch the values library is compiled against.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def make_native(library_dir: Path, object_dir: Path) -> None:
    """Compiles the C parts into `library_dir`; raises SystemExit with the cure when make or the
    compiler is missing."""
    make = shutil.which("make")
    if make is None:
        raise SystemExit(
            "phantora-ns: `make` is not installed; install make and a C compiler, then try again"
        )
    # An outer make's flags (its job server) would confuse this one; a build frontend's PYTHONPATH
    # hides the environment's torch, against which the values library must be compiled.
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH")
    }
    command = [
        make,
        "-C",
        str(ROOT),
        "native",
        f"LIB={library_dir}",
        f"OBJ={object_dir}",
        f"TORCH_PYTHON={sys.executable}",
    ]
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        raise SystemExit("phantora-ns: the C parts did not compile (see above)")


class BuildWithNative(build_py):
    """build_py that also compiles the C parts and copies the cluster files into the package."""

    def run(self):
        super().run()
        # `make build` compiles by itself, after torch is there
        if os.environ.get("PHANTORA_SKIP_NATIVE"):
            return
        if self.editable_mode:
            make_native(ROOT / "phantora_ns" / "lib", ROOT / "build" / "obj")
            return
        package = Path(self.build_lib).resolve() / "phantora_ns"
        make_native(package / "lib", Path(self.build_lib).resolve().parent / "obj-install")
        shutil.copytree(ROOT / "topologies", package / "topologies", dirs_exist_ok=True)


class PlatformDistribution(Distribution):
    """A wheel of this project holds machine code, so it must carry the platform's tag."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildWithNative}, distclass=PlatformDistribution)
