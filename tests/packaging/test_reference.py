"""Why it exists: the tables of docs/clusters.md and docs/report.md are written by hand, because what
they say of a field stands nowhere else. They must name each field that the code has, and no other."""

import itertools
import json
import re

import pytest

from phantora_ns.config import load_cluster
from phantora_ns.config.toml_table import Table
from phantora_ns.protocol import RANK_STATS_FILE, Precision
from phantora_ns.report.run_report import build_report
from tests.hub.inprocess import hub_json

CLUSTERS = {
    "rail": """
        [network]
        kind = "rail"
        nic_bandwidth = "400 Gbit/s"
        [[fault]]
        gpu = "node-0/gpu-0"
        speed = "90%"
        [[fault]]
        link = "node-0/nic-0"
        bandwidth = "50%"
    """,
    "graph": """
        [network]
        kind = "graph"
        [[network.switch]]
        name = "s"
        [[network.link]]
        a = "node-0/nic-0"
        b = "s"
        bandwidth = "400 Gbit/s"
        latency = "1 us"
    """,
}


def section(page, heading):
    """The text below a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    text = page.partition(f"\n{heading}\n")[2]
    assert text, f"no heading {heading}"
    return re.split(rf"^#{{1,{len(level)}}} ", text, maxsplit=1, flags=re.M)[0]


def first_table(text):
    """The names in the first column of the first table."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("|---"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[begin + 1 :])
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def example(text):
    """The keys that the TOML of a section gives."""
    (code,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    return set(re.findall(r"^(\w+) = ", code, re.M))


@pytest.fixture(scope="module")
def keys_of_clusters(tmp_path_factory):
    """The keys that the parser of cluster files knows, by table."""
    known = {}
    done = Table.done
    folder = tmp_path_factory.mktemp("clusters")

    def noted(table):
        if table.file in files:
            known.setdefault(re.sub(r"\[\d+\]", "", table.at), set()).update(table._asked)
        done(table)

    files = [folder / f"{name}.toml" for name in CLUSTERS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "done", noted)
        for file in files:
            file.write_text('gpu = "h100"\nnodes = 1\ngpus_per_node = 1\n' + CLUSTERS[file.stem])
            assert load_cluster(file).network.kind == file.stem
    return known


@pytest.mark.parametrize(
    "table, heading, tables_in_it",
    [
        ("", "## Top level", {"server", "network", "nccl", "fault"}),
        ("server", "## `[server]`", set()),
        ("network", "## `[network]`", {"switch", "link"}),
        ("nccl", "## `[nccl]`", {"ll", "ll128", "simple", "pairs"}),
    ],
)
def test_clusters_md_has_every_key(root, keys_of_clusters, table, heading, tables_in_it):
    text = section((root / "docs/clusters.md").read_text(), heading)
    assert first_table(text) == keys_of_clusters[table] - tables_in_it


def test_clusters_md_shows_every_key_of_graphs_and_faults(root, keys_of_clusters):
    page = (root / "docs/clusters.md").read_text()
    graph = keys_of_clusters["network.switch"] | keys_of_clusters["network.link"]
    assert example(section(page, '### `kind = "graph"`')) == graph
    assert example(section(page, "## `[[fault]]`")) == keys_of_clusters["fault"]


@pytest.fixture
def report(tmp_path):
    """The report of a run of one rank whose statistics are lost: every field is there."""
    counts = ("comm_ns", "comm_wait_ns", "exposed_comm_ns", "messages")
    client = {"rank": 0, "node": 0, "device": 0, "shm": "a", **dict.fromkeys(counts, 0)}
    flop = [0] * len(Precision.LABELS)
    client["steps"] = [[step * 1000, 0, 0, 0, flop] for step in range(5)]
    (tmp_path / "hub.json").write_text(json.dumps(hub_json(clients=[client])))
    run = {"cluster": "h200-rail", "nodes": 1, "gpus_per_node": 1}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / RANK_STATS_FILE).mkdir()
    return build_report(tmp_path, exit_code=0, failed_by=None, wall_s=1.0)


def test_report_md_has_every_field(root, report):
    page = (root / "docs/report.md").read_text()
    assert first_table(page) == set(report)
    assert first_table(section(page, "## `ranks`")) == set(report["ranks"][0])
    assert first_table(section(page, "## `step`")) == set(report["step"])
    assert first_table(section(page, "## `arithmetic`")) == set(report["arithmetic"])
