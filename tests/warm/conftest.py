"""Why it exists: a process that starts from an image must look like one that starts as usual, to its
parent and to itself. So each question is asked of both, and the answers are compared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STARTUP = Path(__file__).resolve().parents[2] / "phantora_ns" / "startup"
MODULES = "decimal,xml.dom.minidom,yaml,numpy,numpy.random"
"""What the images of these tests hold: cheap modules, and two that are not of the standard library."""

BY_CHANCE = "the stack lies in the way"
"""Why a start may be a plain one, once in about 1,000 (docs/warm-start.md)."""


class Runs:
    """Starts Pythons in one run directory, warm or as usual."""

    def __init__(self, folder, library, modules):
        self.folder = folder
        self._library = library
        self._modules = modules
        (folder / "lib").mkdir(parents=True)
        (folder / "warm").mkdir()
        for name in ("libphantora.so", "libcuda.so.1", "libnvidia-ml.so.1"):
            (folder / "lib" / name).symlink_to(library)
        (folder / "startup").symlink_to(STARTUP)

    def environment(self, warm, **more):
        """The variables of a rank; a value None: not set."""
        outer = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PHANTORA", "LD_", "PYTHON", "PYTEST", "COV"))
        }
        job = {
            "LD_PRELOAD": f"{self.folder}/lib/libphantora.so",
            "LD_LIBRARY_PATH": f"{self.folder}/lib",
            "PYTHONPATH": f"{self.folder}/startup",
            "PHANTORA_RUN_DIR": str(self.folder),
            "RANK": "3",
        }
        job |= {"PHANTORA_WARM": self._modules} if warm else {}
        return {k: v for k, v in {**outer, **job, **more}.items() if v is not None}

    def start(self, words, warm, env=(), **options):
        """A Popen of this Python with arguments `words`."""
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | options
        return subprocess.Popen(
            [sys.executable, *map(str, words)],
            env=self.environment(warm, **dict(env)),
            **options,
        )

    def run(self, words, warm, env=(), timeout=60, **options):
        """Exit status, standard output and standard error; the start is the kind that was asked for."""
        if warm and len(list((self.folder / "warm").glob("*.lock"))) > 3:
            for file in (self.folder / "warm").iterdir():  # a run makes only so many images
                file.unlink()
        before = self.starts()
        process = self.start(words, warm, env, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
            process.wait()
        # of either image: "no image of all modules: the stack lies in the way"
        if warm and any(how.endswith(BY_CHANCE) for how in self.starts()[len(before) :][:1]):
            return self.run(words, warm, env, timeout, **options)
        if warm:
            assert self.starts()[len(before) :][:1] == ["warm"], self.starts() + self.said()
        return process.returncode, (out or b"").decode(), (err or b"").decode()

    def both(self, words, env=(), **options):
        """What a plain and a warm start of the same command give."""
        return self.run(words, False, env, **options), self.run(words, True, env, **options)

    def starts(self):
        """How processes started so far."""
        file = self.folder / "warm" / "starts"
        return file.read_text().splitlines() if file.exists() else []

    def said(self):
        """Why images were not made."""
        return [file.read_text() for file in (self.folder / "warm").glob("*.said")]


@pytest.fixture(scope="session")
def new_runs(built_library, tmp_path_factory):
    """Makes a Runs whose images hold `modules`."""

    def make(modules=MODULES):
        return Runs(tmp_path_factory.mktemp("warm") / "run", built_library, modules)

    return make


@pytest.fixture(scope="session")
def runs(new_runs):
    """One run directory for the tests that need no own."""
    return new_runs()


@pytest.fixture
def script(tmp_path):
    """Writes a script and gives its path."""

    def write(text, name="job.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def answers(runs, script):
    """Runs code that fills a dictionary `answer`, in a plain and in a warm process; returns both."""

    def ask(code, words=(), env=(), options=(), **popen):
        path = script(
            "import json, os, sys\nanswer = {}\n" + code + "\nprint(json.dumps(answer))\n"
        )
        results = []
        for status, out, err in runs.both([*options, path, *words], env, **popen):
            assert status == 0, err
            results.append(json.loads(out.splitlines()[-1]))
        return results

    return ask
