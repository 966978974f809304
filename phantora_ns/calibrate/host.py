"""`phantora-ns calibrate host`: how fast a machine's CPUs are, here or elsewhere, for a cluster file.

Why it exists: host times are charged at one machine's speed. Scaled by CPU scores they become the cluster's.
Rules: what measures here and what measures elsewhere is one script with one compiled workload. The
spread is said beside the score.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from phantora_ns.calibrate import cpu_script
from phantora_ns.config import load_cluster
from phantora_ns.launch.errors import LaunchError, UsageError
from phantora_ns.launch.machine.installation import LIBRARIES
from phantora_ns.launch.record.host_speed import REFERENCE_SCORE_NS
from phantora_ns.whole_file import replacing

LIBRARY = LIBRARIES / "libphantora-score.so"
WIDE = 0.1
"""From this spread on the machine was busy with something else."""
MOST_S = 120.0
_LINE = re.compile(
    r"phantora-ns cpu-score: (\d{1,18}) ns, (\d{1,18}) to (\d{1,18}) in 80% of (\d{1,9}) "
    r"measurements, (.+)"
)
_SERVER = re.compile(r"^\s*\[server\]\s*(?:#.*)?$", re.M)
_SCORE = re.compile(r"^\s*cpu_score\s*=.*\n?", re.M)
_NEXT_TABLE = re.compile(r"^\s*\[", re.M)


@dataclass(frozen=True)
class Score:
    """The median, and between which values four fifths of the measurements are, in ns."""

    ns: int
    least_ns: int
    most_ns: int
    measurements: int
    cpu: str

    @property
    def spread(self) -> float:
        """Relative."""
        return (self.most_ns - self.least_ns) / self.ns


def script() -> str:
    """The script that measures elsewhere. Raises LaunchError."""
    try:
        code = LIBRARY.read_bytes()
    except OSError as error:
        raise LaunchError(
            f"the CPU workload cannot be read: {error.strerror}; {LIBRARY}; run make build"
        ) from None
    packed = base64.b64encode(zlib.compress(code, 9)).decode()
    text = Path(cpu_script.__file__).read_text(encoding="utf-8")
    return text.replace('LIBRARY = ""', f'LIBRARY = "{packed}"', 1)


def measure() -> Score:
    """This machine's score. Raises LaunchError."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-"],
            input=script(),
            capture_output=True,
            text=True,
            timeout=MOST_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"this machine's speed cannot be measured: {error}") from None
    if done.returncode:
        raise LaunchError((done.stderr.strip().splitlines() or ["nothing was measured"])[-1])
    return read(done.stdout, "the script's output")


def read(text: str, source: str) -> Score:
    """The score in what the script printed, with whatever is around it. Raises UsageError."""
    found = _LINE.findall(text)
    if len(found) != 1:
        what = "no" if not found else f"{len(found)}"
        raise UsageError(
            f"{what} line of a CPU score; in {source}; give what this prints on the other machine: "
            "phantora-ns calibrate host --script | ssh HOST python3 -"
        )
    ns, least, most, count, cpu = found[0]
    score = Score(int(ns), int(least), int(most), int(count), cpu.strip())
    if not 0 < score.least_ns <= score.ns <= score.most_ns:
        raise UsageError(
            f"the CPU score contradicts itself: {found[0]}; in {source}; measure again"
        )
    return score


def run_host(line: str | None, source: str, into: Path | None) -> list[str]:
    """The command: measures, or takes what the script printed, and says what to do with it. Raises
    UsageError, LaunchError, ConfigError, OSError."""
    score = measure() if line is None else read(line, source)
    times = score.ns / REFERENCE_SCORE_NS
    said = [
        f"{score.cpu}: {score.ns / 1e6:.3f} ms, {score.least_ns / 1e6:.3f} to "
        f"{score.most_ns / 1e6:.3f} in 80% of {score.measurements} measurements"
    ]
    if score.spread > WIDE:
        said.append(
            f"note: they differ by {score.spread:.0%}, so other work runs there; measure again when the "
            "machine is idle"
        )
    value = score_text(score)
    said.append(
        f"the reference machine of --host-time auto has {REFERENCE_SCORE_NS / 1e6:.3f} ms; this one takes "
        f"{times:.3g} times as long"
    )
    if into is not None:
        load_cluster(into)
        enter(into, value)
        return [*said, f"written: {into}: server.cpu_score = {value}"]
    said += ["for a cluster file:", "    [server]", f"    cpu_score = {value}"]
    return [*said, f"or for one run: --host-scale {times:.3g}"]


def score_text(score: Score) -> str:
    """As a cluster file has it."""
    return f'"{score.ns / 1e6:.4g} ms"'


def enter(path: Path, value: str) -> None:
    """Puts the score into a cluster file, and leaves everything else as it is written there. Raises
    ConfigError when it would not be one any more, OSError."""
    text = path.read_text(encoding="utf-8")
    table = _SERVER.search(text)
    line = f"cpu_score = {value}\n"
    if table is None:
        text = f"{text.rstrip()}\n\n[server]\n{line}"
    else:
        begin = min(table.end() + 1, len(text))
        head = text[:begin] if text[:begin].endswith("\n") else text[:begin] + "\n"
        following = _NEXT_TABLE.search(text, begin)
        end = following.start() if following else len(text)
        text = head + line + _SCORE.sub("", text[begin:end]) + text[end:]
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / path.name
        changed.write_text(text, encoding="utf-8")
        load_cluster(changed)
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")
