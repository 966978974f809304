"""The command line with the parts that other folders test replaced, so that tests of the launcher
test the launcher.

Only the hub's program and the report's content are stand-ins; namespaces, processes, signals and
files are the real ones.
"""

import sys
import types
from pathlib import Path

from phantora_ns.launch.run import hub_process

HERE = Path(__file__).resolve().parent


def _hub_command(run_dir):
    return [sys.executable, "-I", str(HERE / "fake_hub.py"), str(run_dir)]


report = types.ModuleType("phantora_ns.report.run_report")
report.build_report = lambda run_dir, **facts: {
    **{key: value for key, value in facts.items() if key != "wall_s"},
    "host_time": {"mode": "auto", "measured": None, "time_share": {}},
}
summary = types.ModuleType("phantora_ns.report.summary")
summary.summary_lines = lambda facts: [
    f"ended: { ({key: value for key, value in facts.items() if key != 'host_time'}) }"
]
pages = types.ModuleType("phantora_ns.report.rank_stats")
pages.read_rank_stats = lambda path: types.SimpleNamespace(clock_ns=int(path.read_text()))
sys.modules["phantora_ns.report.run_report"] = report
sys.modules["phantora_ns.report.summary"] = summary
sys.modules["phantora_ns.report.rank_stats"] = pages
hub_process.hub_command = _hub_command

if __name__ == "__main__":
    from phantora_ns.cli.app import main

    sys.exit(main())
