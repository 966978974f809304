"""`python -m phantora_ns.trace.job RUN_DIR SHARE SHARES`: writes its share of a run's traces.

Why it exists: traces are written after the run, each from its own log, so several processes can share
the work (launch/run/tracing.py). Prints one JSON line per log on stdout: {"rank", "file", ...} or
{"rank", "failed"}. Exit status: 0, or 1 with one line on stderr when the run directory itself cannot
be read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from phantora_ns.config.description import read_cluster
from phantora_ns.model.gpu import GpuModel
from phantora_ns.trace.log import Log
from phantora_ns.trace.options import FILE_NAME
from phantora_ns.trace.times import Times
from phantora_ns.trace.writer import Gpu, write_trace

# Kineto's names of device properties -> CUdevice_attribute
_PROPERTIES = {
    "maxThreadsPerBlock": 1,
    "maxThreadsPerMultiprocessor": 39,
    "regsPerBlock": 12,
    "warpSize": 10,
    "sharedMemPerBlock": 8,
    "numSms": 16,
    "regsPerMultiprocessor": 82,
    "sharedMemPerBlockOptin": 97,
    "sharedMemPerMultiprocessor": 81,
}


def gpu_of(model: GpuModel, count: int, nccl: str) -> Gpu:
    """The part of a trace that describes `count` GPUs of a model and the job's NCCL."""
    known = {
        "name": model.name,
        "totalGlobalMem": model.memory_bytes,
        "computeMajor": model.compute_major,
        "computeMinor": model.compute_minor,
    }
    properties = {
        name: model.attributes[number]
        for name, number in _PROPERTIES.items()
        if number in model.attributes
    }
    return Gpu(known | properties | {"numSms": model.multiprocessors}, count, nccl)


def _nccl_of(run_dir: Path) -> str:
    """What the hub's result says; a hub that was killed leaves none."""
    try:
        found = json.loads((run_dir / "hub.json").read_text())["nccl"]
    except (OSError, ValueError, KeyError):
        found = None
    return (found or {}).get("version") or "unknown"


def write_share(run_dir: Path, share: int, shares: int) -> Iterator[dict]:
    """Writes every `shares`-th trace, starting with number `share`; yields one entry per log.

    Raises OSError, KeyError, ValueError when the run directory cannot be read. Errors of a single
    log are in its entry.
    """
    run = json.loads((run_dir / "run.json").read_text())
    cluster = read_cluster(run_dir)
    gpu = gpu_of(cluster.gpu_model, cluster.gpus_per_node, _nccl_of(run_dir))
    steps = run["trace"]["steps"]
    names = _file_names(run_dir / "trace")
    for path, name in list(names.items())[share::shares]:
        target = Path(run["trace"]["folder"]) / name
        target.parent.mkdir(exist_ok=True)
        try:
            log = Log(path)
            times = Times.read(path.with_suffix(".times"))
            written = write_trace(log, times, target, gpu, None if steps is None else tuple(steps))
            yield {"rank": log.start.rank, "file": name, **written.summary()}
        except FileNotFoundError as error:
            yield {
                "file": name,
                "failed": f"its {Path(error.filename).suffix} file is missing: the hub ended before it wrote it",
            }
        except OSError as error:
            yield {"file": name, "failed": f"{error.strerror}: {error.filename}"}
        except ValueError as error:
            yield {"file": name, "failed": str(error)}


def _file_names(folder: Path) -> dict[Path, str]:
    """log -> name of its trace. A rank that was restarted, or that uses CUDA in several processes,
    has several logs. The largest log keeps the rank's name. The others go into a place that tools
    which read a whole folder ignore."""
    by_rank: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*.log"), key=lambda path: path.stat().st_size, reverse=True):
        try:
            log = Log(path)
        except ValueError:
            continue  # killed while it began
        by_rank.setdefault(log.start.rank, []).append(path)
        log.close()
    names = {}
    for rank, paths in sorted(by_rank.items()):
        for number, path in enumerate(paths):
            if rank >= 0 and number == 0:
                names[path] = FILE_NAME.format(rank)
            else:
                names[path] = f"other/process-{len(names)}.json.gz"
    return names


def write_entries(
    arguments: list[str], write: Callable[[Path, int, int], Iterator[dict]] = write_share
) -> int:
    """Prints what `write` yields for a share, given as the command line's arguments; returns the
    exit status."""
    try:
        run_dir, share, shares = Path(arguments[0]), int(arguments[1]), int(arguments[2])
        for entry in write(run_dir, share, shares):
            print(json.dumps(entry), flush=True)
    except (OSError, KeyError, ValueError, IndexError) as error:
        print(
            f"phantora-ns: the traces cannot be written: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(write_entries(sys.argv[1:]))
