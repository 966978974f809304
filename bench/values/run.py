"""What running small operators on the CPU costs: `python -m bench.values.run` prints a table.

Most operators of a job work on large tensors. For those the cost must stay under 1,000 ns.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    command = [
        sys.executable,
        "-m",
        "phantora_ns.cli",
        "--quiet",
        "--nnodes",
        "1",
        "--gpus-per-node",
        "1",
        "--",
        sys.executable,
        str(HERE / "measure.py"),
    ]
    done = subprocess.run(
        command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        return done.returncode
    print(f"{'operator':32} {'without ns':>10} {'added ns':>10}")
    for line in done.stdout.splitlines():
        if line.startswith("CASE "):
            case = json.loads(line[5:])
            print(f"{case['case']:32} {case['without_ns']:10} {case['added_ns']:10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
