"""Measures the configurations of configs.toml on the GPUs of this machine, several at once where
they fit side by side.

    python -m bench.accuracy.collect --gpus 8 --budget 400 OUT_DIR [--only NAME,NAME]
        [--max-gpus 8] [--min-gpus 1]

Why it exists: time on real GPUs is short. Runs start in the file's order as soon as enough GPUs are
free; one that cannot end within the budget (seconds) is left out and named; every result is in
OUT_DIR/results.jsonl once its run has ended, so a machine that is taken away costs one run. Traces
go to OUT_DIR/traces; keep_trace.py makes of them what data/ holds. Clocks and power are sampled
beside every run. GPUs behind one NVSwitch do not share links, so runs side by side disturb each
other only through the host.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.accuracy.configs import ROOT, Configuration, load

SAMPLE_SECONDS = 2  # nvidia-smi takes the driver's locks: more samples would lengthen the steps
PATIENCE = 1.8  # a run that takes this many times its planned seconds is taken for hung


class Clocks:
    """Samples (SM clock in MHz, power in W, throttle reasons) of every GPU while runs are going
    on."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int, float, float, str]] = []
        query = "index,clocks.sm,power.draw,clocks_event_reasons.active"
        self.process = subprocess.Popen(
            [
                "nvidia-smi",
                f"--query-gpu={query}",
                "--format=csv,noheader,nounits",
                "-l",
                str(SAMPLE_SECONDS),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            fields = [field.strip() for field in line.split(",")]
            try:
                self.samples.append(
                    (
                        time.monotonic(),
                        int(fields[0]),
                        float(fields[1]),
                        float(fields[2]),
                        fields[3],
                    )
                )
            except (ValueError, IndexError):  # "[N/A]", or a header: no sample
                continue

    def between(self, gpu: int, start: float, end: float) -> list[list]:
        """[seconds since start, MHz, W, reasons] of one GPU."""
        return [
            [round(at - start, 1), clock, watt, why]
            for at, index, clock, watt, why in list(self.samples)
            if index == gpu and start <= at <= end
        ]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


class Run:
    """One configuration under torchrun on the given GPUs of this machine."""

    def __init__(self, configuration: Configuration, gpus: list[int], port: int, out: Path) -> None:
        self.configuration, self.gpus, self.start = configuration, gpus, time.monotonic()
        self.scratch = tempfile.TemporaryDirectory()
        self.result, self.log = Path(self.scratch.name, "result"), Path(self.scratch.name, "log")
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(configuration.gpus),
            "--master-port",
            str(port),
            "-m",
            "bench.accuracy.workload",
            *configuration.arguments(),
            "--out",
            str(self.result),
        ]
        if configuration.trace:
            command += ["--trace", str(out / "traces" / f"{configuration.name}.json.gz")]
        environment = dict(
            os.environ, CUDA_VISIBLE_DEVICES=",".join(map(str, gpus)), NCCL_NVLS_ENABLE="0"
        )
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """True once the run is over; one that hangs is killed."""
        if self.process.poll() is not None:
            return True
        if time.monotonic() - self.start > self.configuration.seconds * PATIENCE:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return True
        return False

    def record(self, clocks: Clocks) -> dict:
        """What results.jsonl gets: the workload's own line, or the end of its log if it failed."""
        end = time.monotonic()
        entry = {
            "name": self.configuration.name,
            "set": self.configuration.set,
            "gpus": self.configuration.gpus,
            "flags": self.configuration.flags,
            "wall_s": round(end - self.start, 1),
            "devices": self.gpus,
        }
        if self.process.returncode == 0 and self.result.exists():
            entry["result"] = json.loads(self.result.read_text().splitlines()[-1])
        else:
            entry["error"] = self.log.read_text(errors="replace")[-3000:]
            entry["returncode"] = self.process.returncode
        entry["clocks"] = clocks.between(self.gpus[0], self.start, end)
        self.scratch.cleanup()
        return entry


def collect(configurations: list[Configuration], gpus: int, budget: float, out: Path) -> None:
    """Runs them all within `budget` seconds on `gpus` GPUs; see the module's docstring."""
    (out / "traces").mkdir(parents=True, exist_ok=True)
    begin, clocks = time.monotonic(), Clocks()
    waiting, running, free, port = list(configurations), [], set(range(gpus)), 29600
    try:
        while waiting or running:
            for run in [run for run in running if run.ended()]:
                running.remove(run)
                free.update(run.gpus)
                entry = run.record(clocks)
                with (out / "results.jsonl").open("a") as stream:
                    stream.write(json.dumps(entry) + "\n")
                show(entry, time.monotonic() - begin)
            left = budget - (time.monotonic() - begin)
            for configuration in [c for c in waiting if c.seconds > left]:
                waiting.remove(configuration)
                print(f"left out, no time: {configuration.name}", flush=True)
            # Strictly in order. If small runs could overtake, large ones would never start.
            while waiting and waiting[0].gpus <= len(free):
                chosen = sorted(free)[: waiting[0].gpus]
                free.difference_update(chosen)
                running.append(Run(waiting.pop(0), chosen, port, out))
                port += 1
            time.sleep(0.1)
    finally:
        for run in running:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()
        clocks.close()


def show(entry: dict, elapsed: float) -> None:
    """Prints one line about the run that has just ended."""
    result = entry.get("result")
    if result is None:
        print(
            f"{elapsed:6.1f}  {entry['name']:24s} FAILED ({entry['returncode']}): {entry['error'][-900:]}",
            flush=True,
        )
        return
    print(
        f"{elapsed:6.1f}  {entry['name']:24s} {result['median_s'] * 1e3:9.2f} ms  spread {result['spread']:6.2%}  "
        f"device {result['device_median_s'] * 1e3:9.2f}  issued {result['issue_median_s'] * 1e3:9.2f}  "
        f"peak {result['peak_alloc']:,} / {result['peak_reserved']:,}  in {entry['wall_s']} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of this machine")
    parser.add_argument("--budget", type=float, required=True, help="seconds in all")
    parser.add_argument("--only", help="these names, comma-separated, in this order")
    parser.add_argument("--min-gpus", type=int, default=1)
    parser.add_argument("--max-gpus", type=int, default=1 << 30)
    options = parser.parse_args()
    chosen = [
        c for c in load() if options.min_gpus <= c.gpus <= min(options.max_gpus, options.gpus)
    ]
    if options.only:
        names = {c.name: c for c in chosen}
        chosen = [names[name] for name in options.only.split(",")]
    collect(chosen, options.gpus, options.budget, options.out)


if __name__ == "__main__":
    main()
