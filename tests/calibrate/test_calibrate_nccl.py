"""Why it exists: from logs to a cluster file. Oracles: clusters that are known because the logs were
made from them, the event graph against plans and flows, and collectives measured on real H200s."""

import json
import math
import tomllib
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.calibrate.cluster_file import cluster_text
from phantora_ns.calibrate.nccl_log import LogError
from phantora_ns.calibrate.nccl_run import calibrate, error
from phantora_ns.calibrate.parameters import apply
from phantora_ns.calibrate.samples import Sample
from phantora_ns.calibrate.simulate import Simulator
from phantora_ns.cli.app import main
from phantora_ns.config import ConfigError, load_cluster, topologies_dir
from phantora_ns.config.description import read_cluster, write_cluster
from phantora_ns.config.toml_table import read_toml
from phantora_ns.sim.collectives import KINDS, CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology
from tests.calibrate.made_logs import microseconds, place, write_log
from tests.calibrate.nccl_tests_log import Log

TRUTH = {
    ("network", "efficiency"): 0.6,
    ("nccl.ll", "start"): 5_000.0,
    ("nccl.ll", "step"): 900.0,
    ("nccl.ll", "network_step"): 4_500.0,
    ("nccl.ll128", "network_bandwidth"): 130.0,
    ("nccl.simple", "bandwidth"): 320.0,
    ("nccl.pairs", "start"): 9_000.0,
}
NOISE = 0.02


def known_cluster(**more):
    return apply(load_cluster("h100-rail", 2, 8), {**TRUTH, **more})


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    return [
        write_log(folder, known_cluster(), operation, nodes, 8, NOISE, seed=1)
        for operation in ("all_gather", "all_reduce", "sendrecv")
        for nodes in (1, 2)
    ]


@pytest.fixture(scope="module")
def done(logs):
    return calibrate(logs)


def loaded(done, folder, nodes=2, gpus=8):
    path = folder / "mine.toml"
    path.write_text(done.text)
    return load_cluster(path, nodes, gpus)


# ---- the forward model ----


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("power", [10, 20, 30])
def test_an_operation_takes_what_its_plan_takes_on_idle_links(nodes, power):
    """The event graph, as a job has it, against a plan's flows."""
    cluster, size = load_cluster("h100-rail", nodes, 8), 1 << power
    model = CollectiveModel(Topology.build(cluster), cluster.gpu_model)
    ranks, gpus = nodes * 8, range(nodes * 8)
    shared = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
    for kind in KINDS:
        if kind in ("send", "recv"):
            continue
        plan = model.plan(KINDS.index(kind), gpus, size // ranks if kind in shared else size)
        operation = kind.replace("all_to_all", "alltoall")
        found = microseconds(cluster, operation, nodes, 8, [size])[size]
        assert found == pytest.approx(took(model, plan), abs=0.0011)  # rounded to 1 ns up or down
    ring = model.plan_pairs([(gpu, (gpu + 1) % ranks, size) for gpu in gpus])
    assert microseconds(cluster, "sendrecv", nodes, 8, [size])[size] == pytest.approx(
        took(model, ring), rel=0.2
    )  # a plan of all pairs has one latency, that of the slowest


def took(model, plan):
    flows = FlowSimulator(model.topology.capacities)
    ends = [
        flows.add(plan.before_ns, flow.links, flow.size_bytes, flow.rate_cap)
        for flow in plan.flows
        for _ in range(flow.count)
    ]
    return (max(map(flows.completion_ns, ends)) + plan.after_ns) / 1000


def test_a_hypercube_is_three_exchanges_one_after_the_other():
    cluster, size = load_cluster("h100-1x8", 1, 8), 1 << 20
    model = CollectiveModel(Topology.build(cluster), cluster.gpu_model)
    steps = [
        model.plan_pairs([(gpu, gpu ^ distance, size // 8 * distance) for gpu in range(8)])
        for distance in (1, 2, 4)
    ]
    alone = microseconds(cluster, "hypercube", 1, 8, [size])[size]
    assert alone < sum(took(model, step) for step in steps) < 1.4 * alone


def test_groups_side_by_side_share_what_they_meet():
    """Four communicators across one NIC each are as fast as one; across one NIC in all, slower."""
    groups = tuple(((0, gpu), (1, gpu)) for gpu in range(4))
    for nics, least, most in ((1, 1.0, 1.001), (4, 3.5, 4.5)):
        cluster = load_cluster("h100-rail", 2, 4)
        cluster = replace(cluster, server=replace(cluster.server, gpus_per_nic=nics))
        one, four = (
            Simulator(cluster).run(Sample("all_gather", which, 1 << 28, 0, 1, 1, 1)).ns
            for which in (groups[:1], groups)
        )
        assert least <= four / one <= most


# ---- the fit ----


def test_a_known_cluster_is_found_again(done, tmp_path):
    """Also at sizes that no log had, and of operations that no log had."""
    found = loaded(done, tmp_path)
    for operation in ("all_gather", "all_reduce", "sendrecv", "reduce_scatter"):
        for nodes in (1, 2):
            sizes = [3 << power for power in range(8, 31, 3)]
            wanted = microseconds(known_cluster(), operation, nodes, 8, sizes)
            have = microseconds(found, operation, nodes, 8, sizes)
            errors = [abs(have[size] / wanted[size] - 1) for size in sizes]
            assert median(errors) < 0.02 and max(errors) < 0.1, (operation, nodes, errors)


def test_parameters_are_as_sure_as_they_say(done):
    found = {parameter.name: (value, spread) for parameter, value, spread in done.rows}
    sure = 0
    for name, true in TRUTH.items():
        value, spread = found[name]
        assert abs(math.log(value / true)) < 4 * spread, (name, value, true, spread)
        sure += spread < 0.1
    assert sure >= 3


def test_both_lists_are_errors_of_the_file(done, tmp_path):
    simulator = Simulator(loaded(done, tmp_path))
    assert {s.size for s in done.fitted}.isdisjoint({s.size for s in done.left_out})
    for part in (done.fitted, done.left_out):
        assert all(simulator.run(sample) == simulated for sample, simulated in part.items())
        errors = [abs(error(*one)) for one in part.items()]
        assert median(errors) < 1.5 * NOISE
    assert done.before.startswith("h100-rail: median ")


def test_one_strange_time_moves_little(logs, done, tmp_path):
    """A row that took ten times as long, because something else ran."""
    for log in logs:
        (tmp_path / log.name).write_text(log.read_text())
    strange = tmp_path / "all_gather-1x8.log"
    times = microseconds(known_cluster(), "all_gather", 1, 8, [1 << p for p in range(10, 33, 2)])
    times[1 << 20] *= 10
    strange.write_text(Log("all_gather", 1, 8).text({k: (v, v) for k, v in times.items()}))
    moved = calibrate([tmp_path / log.name for log in logs])
    before, after = ({p.name: value for p, value, _ in one.rows} for one in (done, moved))
    for name in (("network", "efficiency"), ("nccl.simple", "bandwidth")):
        assert after[name] == pytest.approx(before[name], rel=0.03)
    errors = {sample: abs(error(*one)) for one in moved.left_out.items() for sample in one[:1]}
    assert median(errors.values()) < 1.5 * NOISE


def test_nvls_is_on_where_that_fits_better(tmp_path):
    """8 H100 with NVLink SHARP: 480 GB/s of bus bandwidth, where a ring reaches 370."""
    cluster = load_cluster("h100-1x8", 1, 8)
    for on in (False, True):
        known = replace(cluster, nccl=replace(cluster.nccl, nvls=on))
        log = write_log(tmp_path, known, "all_reduce", 1, 8, NOISE, seed=2)
        assert tomllib.loads(calibrate([log]).text)["nccl"]["nvls"] is on
    assert "nvls" in tomllib.loads(calibrate([log], settings=["nccl.nvls=false"]).text)["nccl"]


def test_a_nic_is_as_fast_as_what_passed_it(tmp_path):
    """400 Gbit/s, where the cluster to start from has 100."""
    cluster = load_cluster("h100-rail", 2, 8)
    log = write_log(tmp_path, cluster, "all_gather", 2, 8, 0.0, seed=3)
    done = calibrate([log], settings=["network.nic_bandwidth=100 Gbit/s"])
    assert tomllib.loads(done.text)["network"]["nic_bandwidth"] == "400 Gbit/s"
    assert any("more than the 100 Gbit/s" in note for note in done.notes)
    assert median(abs(error(*one)) for one in done.left_out.items()) < 0.02


def test_a_nic_that_limits_the_fit_is_replaced(tmp_path):
    """All-reduce may send half of what a ring does, so it says less about the NIC."""
    known = apply(load_cluster("h100-rail", 2, 8), {("nccl.simple", "bandwidth"): 350.0})
    logs = [write_log(tmp_path, known, "all_reduce", nodes, 8, 0.0, seed=3) for nodes in (1, 2)]
    done = calibrate(logs, settings=["network.nic_bandwidth=200 Gbit/s", "nccl.nvls=false"])
    assert tomllib.loads(done.text)["network"]["nic_bandwidth"] == "400 Gbit/s"
    assert median(abs(error(*one)) for one in done.left_out.items()) < 0.02


def test_a_slow_network_is_fitted_and_named(tmp_path):
    cluster = load_cluster("h100-rail", 2, 8)
    slow = replace(cluster, network=replace(cluster.network, nic_bytes_per_ns=20.0))
    done = calibrate([write_log(tmp_path, slow, "all_gather", 2, 8, 0.0, seed=3)])
    assert any("if yours have less, say so" in note for note in done.notes)
    said = calibrate(
        [tmp_path / "all_gather-2x8.log"], settings=["network.nic_bandwidth=200 Gbit/s"]
    )
    assert tomllib.loads(said.text)["network"]["nic_bandwidth"] == "200 Gbit/s"
    assert not any("say so" in note for note in said.notes)


def test_a_faster_link_inside_the_server_is_raised(tmp_path):
    cluster = load_cluster("a100-1x8", 1, 8)
    fast = apply(cluster, {("nccl.simple", "bandwidth"): 400.0})
    fast = replace(fast, server=replace(fast.server, nvlink_bytes_per_ns=600.0))
    times = microseconds(fast, "all_gather", 1, 8, [1 << p for p in range(20, 33)])
    log = tmp_path / "all_gather.log"
    one = Log("all_gather", 1, 8, gpu="NVIDIA A100-SXM4-80GB")
    log.write_text(one.text({size: (us, us) for size, us in times.items()}))
    done = calibrate([log])
    assert any("nvlink_bandwidth raised" in note for note in done.notes)
    assert max(abs(error(*one)) for one in done.fitted.items()) < 0.05


def test_real_h200s(tmp_path, root):
    """Collectives in CUDA graphs on real servers (bench/nccl/data), which the shipped H200 was fitted
    to. From the A100's figures, half of them lead close to what they all led to by hand."""
    times = {}
    for path in sorted((root / "bench/nccl/data").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row.get("graph") and not row.get("algo"):
                times.setdefault((row["op"], row["world"]), {})[row["bytes"]] = row["us"]
    names = {"all_to_all": "alltoall"}
    logs = []
    for (operation, world), found in times.items():
        operation = names.get(operation, operation)
        log = Log(operation, 1, world, gpu="NVIDIA H200")
        logs.append(tmp_path / f"{operation}-{world}.log")
        logs[-1].write_text(log.text({size: (us, us) for size, us in sorted(found.items())}))
    poor = tmp_path / "poor.toml"
    gpu = topologies_dir() / "h200-1x8.toml"
    text = "".join(
        f'[nccl.{name}]\nstart = "30 us"\nstep = "6 us"\nbandwidth = "150 GB/s"\n'
        for name in ("ll", "ll128", "simple")
    )
    poor.write_text(gpu.read_text() + text + '[nccl.pairs]\nstart = "40 us"\nll_start = "30 us"\n')
    done = calibrate(logs, like=str(poor))
    errors = [abs(error(*one)) for one in done.left_out.items()]
    assert len(errors) > 50
    assert median(errors) < 0.08 and sorted(errors)[int(0.9 * len(errors))] < 0.2


# ---- the file ----


@pytest.mark.parametrize("path", sorted(topologies_dir().glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_clusters_survive_the_writer(path):
    data = read_toml(path)
    assert tomllib.loads(cluster_text(data, ["a", "b"], {})) == data


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=20),
)
TABLES = st.recursive(
    st.dictionaries(st.text(min_size=1, max_size=8), VALUES, max_size=4),
    lambda inner: st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.one_of(VALUES, inner, st.lists(inner, min_size=1, max_size=3)),
        max_size=4,
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(TABLES)
def test_what_is_written_is_toml(data):
    assert tomllib.loads(cluster_text(data, ["head"], {})) == data


def test_a_cluster_file_s_times_go_before_the_gpu_s(tmp_path):
    path = tmp_path / "c.toml"
    text = (topologies_dir() / "h100-rail.toml").read_text()
    path.write_text(text + '[nccl.ll]\nnetwork_step = "9 us"\n[nccl.pairs]\nstart = "1 us"\n')
    cluster, shipped = (load_cluster(name, 2, 8) for name in (path, "h100-rail"))
    assert cluster.gpu_model.nccl.protocols[0].network_step_ns == 9000
    assert cluster.gpu_model.nccl.protocols[1:] == shipped.gpu_model.nccl.protocols[1:]
    assert cluster.gpu_model.nccl.pairs.start_ns == 1000
    # A gathered kilobyte makes one step between two servers, by LL.
    small = [microseconds(one, "all_gather", 2, 8, [1024])[1024] for one in (shipped, cluster)]
    assert small[1] - small[0] == pytest.approx(9.0 - 2.7, abs=0.002)
    write_cluster(cluster, tmp_path)
    assert read_cluster(tmp_path) == cluster


@pytest.mark.parametrize(
    "text, said",
    [
        ('[nccl.ll]\nnetwork_stop = "1 us"\n', "nccl.ll.network_stop: unknown key; did you mean"),
        ("[nccl.simple]\nstart = 3\n", "nccl.simple.start: 3 is not a time"),
        ("[nccl]\nnvls_start = true\n", "nccl.nvls_start: True is not a time"),
    ],
)
def test_mistakes_in_times_are_named(tmp_path, text, said):
    path = tmp_path / "c.toml"
    path.write_text((topologies_dir() / "h100-1x8.toml").read_text() + text)
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        load_cluster(path)


# ---- the command ----


def test_the_command_writes_a_file_and_prints_both_lists(logs, tmp_path, capsys, done):
    """And the same file again: a fit repeats to the byte."""
    path = tmp_path / "mine.toml"
    assert main(["calibrate", "nccl", *map(str, logs), "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert path.read_text() == done.text
    assert "\nFitted: 36, errors median" in out and "\nLeft out of the fit: 36, errors" in out
    assert out.count("  all_gather, 16 GPUs on 2 nodes: errors") == 2
    assert f"written: {path}" in out and "64 MiB" in out
    assert main(["calibrate", "nccl", str(logs[0]), "-o", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "gpu, like, said",
    [
        ("Tesla V100-SXM2-16GB", None, "GPU 'Tesla V100-SXM2-16GB' is not described"),
        ("NVIDIA H100 PCIe", None, "GPU 'NVIDIA H100 PCIe' is not described"),
        ("NVIDIA GH200 480GB", None, "is not described"),
        ("Tesla V100-SXM2-16GB", "h100-1x8", "h100-1x8 has"),
        ("NVIDIA H100", "nowhere", "no such cluster"),
        ("NVIDIA H100", "example-graph", "example-graph has 2 and 2"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line(tmp_path, capsys, gpu, like, said):
    log = tmp_path / "all_gather.log"
    nodes = 2 if like == "h100-1x8" else 1
    log.write_text(Log("all_gather", nodes, 8, gpu=gpu).text({1 << 20: (50.0, 50.0)}))
    arguments = ["calibrate", "nccl", str(log)] + (["--like", like] if like else [])
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("phantora-ns: ") and error.count("\n") == 1


def test_the_l40s_has_a_cluster_of_its_own(tmp_path):
    log = tmp_path / "all_gather.log"
    times = microseconds(load_cluster("l40s-1x8", 1, 8), "all_gather", 1, 8, [1 << 20, 1 << 24])
    text = Log("all_gather", 1, 8, gpu="NVIDIA L40S").text({s: (u, u) for s, u in times.items()})
    log.write_text(text)
    assert tomllib.loads(calibrate([log]).text)["gpu"] == "l40s"
    log.write_text(text.replace("NVIDIA L40S", "NVIDIA L4"))
    with pytest.raises(LogError, match="name the nearest cluster"):
        calibrate([log])


def test_place_is_by_rank():
    assert place(2, 2) == (((0, 0), (0, 1), (1, 0), (1, 1)),)
