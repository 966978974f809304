"""Why it exists: the parsers in C read what jobs and users hand us. Here each is fed with changed
inputs, those first that reach new code (c/guide.c), under the address and undefined-behaviour sanitizers.

    .venv/bin/python -m tests.fuzz.parsers [--seconds 3600] [--seed S] [--keep] [PARSER...]

`corpus/PARSER.txt` has an input a line, in hexadecimal; --keep adds what reaches more.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARSERS = ("cubin", "names", "values", "kernelinfo", "reply")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-function", *SANITIZED)


@dataclass(frozen=True)
class Found:
    """The result of fuzzing one parser.

    `crash` is None, or the input that crashed the parser and what the sanitizer printed.
    """

    executions: int
    places: int
    inputs: int
    crash: tuple[bytes, str] | None = None


class Parser:
    """A parser of PARSERS, built in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder / name
        self._program = self._folder / "guide"
        for what in ("first", "fresh"):
            (self._folder / what).mkdir(parents=True)
        include = (f"-I{ROOT / 'libintercept'}", f"-I{HERE / 'c'}")
        objects = []
        for source, more in (("guide", ()), (name, ("-fsanitize-coverage=trace-pc",))):
            objects.append(self._folder / f"{source}.o")
            path = HERE / "c" / f"{source}.c"
            command = ("cc", *FLAGS, *more, *include, "-c", path, "-o", objects[-1])
            subprocess.run(command, check=True)
        # what only functions use that are not called
        unresolved = ("-no-pie", "-Wl,-z,lazy", "-Wl,--unresolved-symbols=ignore-all")
        command = ("cc", *SANITIZED, *unresolved, *objects, "-o", self._program)
        subprocess.run(command, check=True)

    def run(self, first: Iterable[bytes], seed: int, executions: int, seconds: int) -> Found:
        """Begins with the inputs `first` and ends after so many executions or seconds."""
        for number, data in enumerate(first):
            (self._folder / "first" / f"{number:05}").write_bytes(data)
        crash = self._folder / "crash"
        crash.unlink(missing_ok=True)
        numbers = (str(seed), str(executions), str(seconds))
        done = subprocess.run(
            [self._program, *numbers, self._folder / "first", self._folder / "fresh", crash],
            capture_output=True,
            env={
                "ASAN_OPTIONS": "detect_leaks=1",
                "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
            },
        )
        if done.returncode:
            data = crash.read_bytes() if crash.exists() else b""
            said = f"exit code {done.returncode}: {done.stderr.decode(errors='replace')[-3000:]}"
            return Found(0, 0, 0, (data, said))
        words = done.stdout.split()
        return Found(int(words[1]), int(words[3]), int(words[5]))

    def fresh(self) -> list[bytes]:
        """The inputs that reached new code, in all runs."""
        return [path.read_bytes() for path in sorted((self._folder / "fresh").iterdir())]


def corpus(name: str) -> list[bytes]:
    """The inputs that are kept for a parser."""
    return [bytes.fromhex(line) for line in (HERE / f"corpus/{name}.txt").read_text().split()]


def keep(name: str, inputs: Iterable[bytes]) -> None:
    lines = sorted({data.hex() for data in inputs}, key=lambda line: (len(line), line))
    (HERE / f"corpus/{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description="Feeds the parsers in C with changed inputs.")
    parser.add_argument("parsers", nargs="*", default=PARSERS)
    parser.add_argument("--seconds", type=int, default=3600, help="for each parser")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    crashes = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for name in options.parsers:
            under_test = Parser(name, Path(folder))
            found = under_test.run(corpus(name), options.seed, 2**63, options.seconds)
            print(
                f"{name}: {found.executions} executions with seed {options.seed}, "
                f"{found.places} places, {found.inputs} inputs",
                flush=True,
            )
            if found.crash is not None:
                crashes += 1
                print(f"{name} ended on {found.crash[0].hex()}\n{found.crash[1]}", flush=True)
            if options.keep:
                keep(name, corpus(name) + under_test.fresh())
    return crashes > 0


if __name__ == "__main__":
    sys.exit(main())
