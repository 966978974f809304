"""Why it exists: `pip install .` and `make wheel` must compile the C parts, by the Makefile's rules
and no second copy of them.

Everything declarative is in pyproject.toml. Rule: this file decides only *where* the results go, and
which files from outside the package are copied into it. Nothing here depends on a torch: the values
library, which does, is compiled at first use from the sources that are copied.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
COPIED = (
    "topologies/*.toml",
    # the values library's sources, with the headers of the core that they include
    "libintercept/values/*",
    "libintercept/base/protocol.gen.h",
    "libintercept/work/values_start.h",
)


def make_native(library_dir: Path, object_dir: Path) -> None:
    """Compiles the C parts into `library_dir`; raises SystemExit with the cure when make or the
    compiler is missing."""
    make = shutil.which("make")
    if make is None:
        raise SystemExit(
            "phantora-ns: `make` is not installed; install make and a C compiler, then try again"
        )
    # an outer make's flags (its job server) would confuse this one
    environment = {
        k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    command = [
        make,
        "-C",
        str(ROOT),
        f"-j{os.cpu_count()}",
        "native-c",
        f"LIB={library_dir}",
        f"OBJ={object_dir}",
    ]
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        raise SystemExit("phantora-ns: the C parts did not compile (see above)")


class BuildWithNative(build_py):
    """build_py that also compiles the C parts and copies files into the package."""

    def run(self):
        super().run()
        # `make build` compiles by itself
        if os.environ.get("PHANTORA_SKIP_NATIVE"):
            return
        if self.editable_mode:
            make_native(ROOT / "phantora_ns" / "lib", ROOT / "build" / "obj")
            return
        package = Path(self.build_lib).resolve() / "phantora_ns"
        make_native(package / "lib", Path(self.build_lib).resolve().parent / "obj-install")
        for pattern in COPIED:
            for file in filter(Path.is_file, ROOT.glob(pattern)):
                target = package / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)


class PlatformDistribution(Distribution):
    """A wheel of this project holds machine code but no Python extension, so it carries the
    platform's tag and fits every Python 3."""

    def has_ext_modules(self):
        return True

    def get_command_class(self, command):
        """bdist_wheel is setuptools' own or, before 70.1, the package wheel's."""
        found = super().get_command_class(command)
        if command != "bdist_wheel":
            return found
        tag = {"get_tag": lambda self: ("py3", "none", found.get_tag(self)[2])}
        return type("bdist_wheel", (found,), tag)


setup(cmdclass={"build_py": BuildWithNative}, distclass=PlatformDistribution)
