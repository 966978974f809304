"""Measures what a GPU draws, and what that does to its clock: by kind of kernel, by mix, beside a
ring, and in training steps.

    python -m bench.power.measure OUT_DIR [energy,mixes,response,contention,training [WORK,...]]

Why it exists: an H200 that trains runs at its power limit, so a kernel's time depends on what ran in
the tens of milliseconds before it. One GPU, about eight minutes; every line is written when it is
known. WORK: the only kernels to keep up in the part `energy`, of those in work.py. Rule: clocks and
limits are read, never set.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from bench.events import us_per_call
from bench.power.ring import GATHER, REDUCE, WAIT, Ring
from bench.power.sampler import Sampler
from bench.power.training import free, training
from bench.power.work import WORK

SECONDS = float(os.environ.get("POWER_SECONDS", "1.3"))
REST_S = 0.25


class Out:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / "power.jsonl", "a", buffering=1)

    def __call__(self, part: str, **values) -> None:
        self.file.write(json.dumps({"part": part, **values}) + "\n")


def sustained(sampler: Sampler, issue, seconds: float, chunk_s: float = 0.04) -> dict:
    """A piece of work kept up: the first chunk, the time once settled, and the clock then."""
    us_per_call(issue, 2)
    time.sleep(REST_S)
    burst = us_per_call(issue, 3)
    count = max(1, int(chunk_s * 1e6 / burst))
    begin, series = sampler.now(), []
    while sampler.now() - begin < seconds:
        at = sampler.now()
        series.append((at, us_per_call(issue, count)))
    settled = begin + seconds * 0.5
    late = sorted(us for at, us in series if at >= settled)
    return {
        "burst_us": round(burst, 2),
        "us": round(late[len(late) // 2], 3),
        "count": count,
        "series": [[round(at - begin, 3), round(us, 2)] for at, us in series],
        **sampler.between(settled, sampler.now()),
    }


def energy(out, sampler, only: frozenset[str] = frozenset()) -> None:
    time.sleep(1.0)
    out("idle", **sampler.between(sampler.now() - 0.8, sampler.now()))
    for name, build in WORK.items():
        if only and name not in only:
            continue
        issue = build()
        out("energy", work=name, **sustained(sampler, issue, SECONDS))
        del issue
        free()


def mixes(out, sampler) -> None:
    """Two kinds of work in turn, by shares of time and by length of a turn; and one with pauses."""
    pairs = [
        ("gemm_8192_4096_14336", "elementwise_512MB"),
        ("gemm_8192_4096_14336", "attention_forward"),
        ("attention_backward", "elementwise_512MB"),
        ("gemm_4096_4096_4096", "rms_norm"),
    ]
    for first_name, second_name in pairs:
        first, second = WORK[first_name](), WORK[second_name]()
        first_us, second_us = (
            min(us_per_call(first, 5) for _ in range(2)),
            min(us_per_call(second, 5) for _ in range(2)),
        )
        for share in (0.25, 0.5, 0.75):
            for turn_us in (4000, 40000) if share == 0.5 else (4000,):
                a = max(1, round(turn_us * share / first_us))
                b = max(1, round(turn_us * (1 - share) / second_us))
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
                time.sleep(REST_S)
                begin, rows = sampler.now(), []
                while sampler.now() - begin < SECONDS:
                    for _ in range(max(1, 40000 // turn_us)):
                        marks[0].record()
                        for _ in range(a):
                            first()
                        marks[1].record()
                        for _ in range(b):
                            second()
                        marks[2].record()
                    torch.cuda.synchronize()
                    rows.append(
                        (
                            sampler.now(),
                            marks[0].elapsed_time(marks[1]) / a * 1e3,
                            marks[1].elapsed_time(marks[2]) / b * 1e3,
                        )
                    )
                settled = begin + SECONDS * 0.5
                late = [row for row in rows if row[0] >= settled]
                out(
                    "mix",
                    work=[first_name, second_name],
                    counts=[a, b],
                    turn_us=turn_us,
                    us=[round(sorted(r[i] for r in late)[len(late) // 2], 3) for i in (1, 2)],
                    **sampler.between(settled, sampler.now()),
                )
        del first, second
        free()
    for name in ("gemm_8192_4096_14336", "attention_forward"):
        issue = WORK[name]()
        alone = min(us_per_call(issue, 5) for _ in range(2))
        for busy in (0.35, 0.5, 0.65, 0.8, 0.9):
            for turn_us in (4000, 30000):
                count = max(1, round(turn_us * busy / alone))
                time.sleep(REST_S)
                begin, rows = sampler.now(), []
                while sampler.now() - begin < SECONDS:
                    at = time.perf_counter()
                    us = us_per_call(issue, count)
                    rows.append((sampler.now(), us))
                    pause = us * count * (1 / busy - 1) / 1e6
                    while time.perf_counter() - at < us * count / 1e6 + pause:
                        pass
                settled = begin + SECONDS * 0.5
                late = sorted(us for at, us in rows if at >= settled)
                out(
                    "pauses",
                    work=name,
                    busy=busy,
                    turn_us=turn_us,
                    count=count,
                    us=round(late[len(late) // 2], 3),
                    **sampler.between(settled, sampler.now()),
                )
        del issue
        free()


def response(out, sampler) -> None:
    """How fast the clock follows a change of work: chunks of about 3 ms, before and after."""
    heavy, light = WORK["gemm_8192_4096_14336"](), WORK["elementwise_512MB"]()
    us_per_call(heavy, 2), us_per_call(light, 2)
    for turn in range(3):
        time.sleep(0.6)
        rows = []
        for name, issue, count, chunks in (
            ("heavy", heavy, 2, 120),
            ("light", light, 12, 120),
            ("heavy", heavy, 2, 120),
        ):
            for _ in range(chunks):
                at = sampler.now()
                rows.append([name, round(at, 4), round(us_per_call(issue, count), 2)])
        begin, end = rows[0][1], sampler.now()
        clock = [row[:5] for row in sampler.rows if begin - 0.05 <= row[0] <= end]
        out("response", turn=turn, rows=rows, clock=clock)
    del heavy, light
    free()


def contention(out, sampler) -> None:
    """Each kernel alone and wholly covered by a ring, when the GPU is rested and when it is hot."""
    ring = Ring()
    side, main = torch.cuda.Stream(), torch.cuda.Stream()
    variants = [
        ("wait", WAIT, 370),
        ("gather_185", GATHER, 185),
        ("gather_370", GATHER, 370),
        ("gather_free", GATHER, 0),
        ("reduce_370", REDUCE, 370),
    ]

    def covered(issue, count, kind, rate, limit_us):
        ring.reset()
        torch.cuda.synchronize()
        step_us = 524288 * ring.channels / (rate or 1000) / 1e3
        with torch.cuda.stream(side):
            ring.launch(kind, rate, int(limit_us / step_us) + 10)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        with torch.cuda.stream(main):
            torch.cuda._sleep(200_000)
            marks[0].record()
            for _ in range(count):
                issue()
            marks[1].record()
            ring.stop()
        torch.cuda.synchronize()
        _, steps, us, _ = ring.control.tolist()
        moved = 524288 * steps / max(us, 1) / 1e3  # GB/s
        return marks[0].elapsed_time(marks[1]) / count * 1e3, moved

    for kind_name, kind, rate in variants:  # the ring's own rate with nothing beside it
        ring.reset()
        with torch.cuda.stream(side):
            ring.launch(kind, rate, 400)
        torch.cuda.synchronize()
        _, steps, us, _ = ring.control.tolist()
        out("ring_alone", ring=kind_name, gbps=round(524288 * steps / max(us, 1) / 1e3, 1), us=us)
    for name, build in WORK.items():
        with torch.cuda.stream(main):
            issue = build()
            us_per_call(issue, 2)
        torch.cuda.synchronize()
        for hot in (False, True):
            with torch.cuda.stream(main):
                base = min(us_per_call(issue, 4) for _ in range(2))
                count = max(4, min(400, int(8000 / base)))
                if hot:
                    begin = sampler.now()
                    while sampler.now() - begin < 0.5:
                        base = us_per_call(issue, max(4, int(40000 / base)))
            for kind_name, kind, rate in variants:
                rows = []
                begin = sampler.now()
                for _ in range(4):
                    if hot:
                        with torch.cuda.stream(main):
                            us_per_call(issue, count)
                    rows.append(covered(issue, count, kind, rate, base * count * 6 + 2000))
                with torch.cuda.stream(main):
                    after = us_per_call(issue, count)
                rows.sort()
                out(
                    "contention",
                    work=name,
                    hot=hot,
                    ring=kind_name,
                    alone_us=round(base, 3),
                    alone_after_us=round(after, 3),
                    beside_us=[round(row[0], 3) for row in rows],
                    ring_gbps=[round(row[1], 1) for row in rows],
                    **sampler.between(begin, sampler.now()),
                )
        del issue
        free()


def main() -> None:
    folder = Path(sys.argv[1])
    chosen = sys.argv[2].split(",") if len(sys.argv) > 2 else list(PARTS)
    only = frozenset(sys.argv[3].split(",") if len(sys.argv) > 3 else ())
    out = Out(folder)
    torch.cuda.init()
    sampler = Sampler(period_s=0.01)
    out("machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__, at=time.time())
    for name in chosen:
        begin = time.time()
        more = {"training": [folder], "energy": [only]}.get(name, [])
        PARTS[name](out, sampler, *more)
        print(f"{name}: {time.time() - begin:.0f} s", flush=True)
    out("samples", rows=sampler.rows[:: max(1, len(sampler.rows) // 60000)])
    sampler.close()


PARTS = {
    "contention": contention,
    "training": training,
    "energy": energy,
    "mixes": mixes,
    "response": response,
}

if __name__ == "__main__":
    main()
