"""Jobs under the leader's library over an emulated GPU and a fake CUPTI.

Why it exists: several tests need the same two hubs (the leader's, and that of the emulator below),
run directories and environment. The leader's hub answers a LOOKUP as a real one does: exactly what
was MEASURED, else a guess.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgpack

ROOT = Path(__file__).resolve().parents[2]
MEASURED, HOST, LOOKUP, FETCH, OPS, COMM_INIT = 13, 14, 10, 9, 8, 5
EXACT, GUESS = 0, 7


def _recording_hub():
    spec = importlib.util.spec_from_file_location(
        "recording_hub", ROOT / "tests/intercept/recording_hub.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RecordingHub


class LeadersHub(_recording_hub()):
    """A hub double that answers with what it was told."""

    def __init__(self, run_dir, duration_ns=1000):
        super().__init__(run_dir, duration_ns)
        self.told = {}

    def _answer(self, client, message):
        if message[0] == MEASURED:
            for kind, fields, _context, durations in message[3]:
                self.told.setdefault(signature(kind, fields), []).extend(durations)
        if message[0] == LOOKUP:
            known = self.told.get(signature(message[5], message[6]))
            return [
                LOOKUP,
                message[2],
                known[0] if known else self.duration_ns(message[6]),
                EXACT if known else GUESS,
                0,
                0,
                1,
                0,
            ]
        if message[0] == FETCH:
            return [FETCH, message[2], b"", 0]
        return super()._answer(client, message)

    def measured(self):
        """{signature: every duration sent}."""
        found = {}
        for message in self.of(MEASURED):
            for kind, fields, _context, durations in message[3]:
                found.setdefault(signature(kind, fields), []).extend(durations)
        return found

    def host(self):
        """The maps of the HOST messages."""
        return [message[3] for message in self.of(HOST)]


class HoldingHub(LeadersHub):
    """Answers a rendezvous only when `free()` says so."""

    def __init__(self, run_dir, free):
        super().__init__(run_dir)
        self.free = free

    def _answer(self, client, message):
        if message[0] == COMM_INIT:
            self.free()
        return super()._answer(client, message)


def signature(kind, fields):
    """A signature as its canonical bytes; LOOKUP's two extra elements of a kernel are left out."""
    return msgpack.packb([kind, fields[:12] if kind == 0 else fields])


def looked_up(hub):
    """The signatures that a simulated rank asked `hub` for."""
    return {signature(m[5], m[6]) for m in hub.of(LOOKUP)}


def build_fake(folder):
    """Compiles fake_cupti.c; returns the library's path."""
    return build_library(ROOT / "tests/leader/fake_cupti.c", folder / "libcupti-fake.so")


def build_library(source, target):
    """Compiles one C file; returns the library's path."""
    flags = [
        "-std=gnu11",
        f"-I{ROOT}/libintercept",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
    ]
    subprocess.run(["cc", *flags, "-o", target, source, "-lpthread"], check=True)
    return target


def on_one_gpu(phantora, *arguments, environment="", **options):
    """Runs phantora-ns with `arguments` on a machine with one H200, which an outer run emulates.
    `environment`: settings of the inner run, for a shell."""
    return phantora(
        "--quiet",
        "--isolation",
        "none",
        "--leaders",
        "none",
        "--gpus-per-node",
        1,
        "--",
        "sh",
        "-c",
        f'{environment} exec {sys.executable} -m phantora_ns.cli "$@"',
        "sh",
        *arguments,
        **options,
    )


def run_dir(path, gpu):
    """A run directory with `gpu`'s device.conf."""
    from phantora_ns.config.device_conf import write_device_conf

    path.mkdir(mode=0o700)
    (path / "ranks").mkdir()
    write_device_conf(gpu, path / "device.conf")
    return path


def base_environment():
    """The environment of a job, without what the test's own process has of ours."""
    packages = Path(importlib.util.find_spec("zmq").origin).parents[1]
    zmq = next((packages / "pyzmq.libs").glob("libzmq-*.so*"))
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("PHANTORA_", "CUDA_", "LD_"))}
    return {
        **outer,
        "PHANTORA_NODE": "0",
        "PHANTORA_GPUS_PER_NODE": "8",
        "PHANTORA_LIBZMQ": str(zmq),
        "PHANTORA_VALUES_LIB": "",
        "PHANTORA_HOST_TIME": "none",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
