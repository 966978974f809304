"""Why it exists: a trace that was reduced to be kept must say what the raw one said."""

import dataclasses
import gzip
import json

from bench.accuracy.keep_trace import keep
from phantora_ns.compressed import existing, read_text
from phantora_ns.kernels.evaluation.trace_launches import launches
from phantora_ns.trace.kineto import read_trace

from .traces import Tracer


def test_a_kept_trace_reads_as_the_raw_one(tmp_path):
    tracer = Tracer()
    for start in (0, 1_000, 5_250):
        tracer.kernel("void kernel<float>(float*)", start, start + 777)
    tracer.write(tmp_path / "plain.json")
    trace = json.loads((tmp_path / "plain.json").read_text())
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel":
            event["args"] |= {"grid": [3, 2, 1], "block": [128, 1, 1], "queued": 0}
    arrow = {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 4335109953171.218, "name": "ac2g"}
    trace["traceEvents"].append(arrow | {"cat": "ac2g"})
    raw, kept = tmp_path / "raw.json.gz", tmp_path / "kept.json.xz"
    raw.write_bytes(gzip.compress(json.dumps(trace).encode()))
    keep(raw, kept)
    assert "ac2g" in read_text(raw) and "queued" in read_text(raw)
    assert "ac2g" not in read_text(kept) and "queued" not in read_text(kept)
    assert dataclasses.replace(read_trace(kept), path="") == dataclasses.replace(
        read_trace(raw), path=""
    )
    assert launches(kept) == launches(raw) and len(launches(raw)) == 3


def test_a_compressed_file_is_found_by_its_plain_name(tmp_path):
    assert existing(tmp_path / "a.json") is None
    (tmp_path / "a.json.xz").touch()
    assert existing(tmp_path / "a.json") == tmp_path / "a.json.xz"
