"""Why it exists: a cluster file either means what it says or is refused in one line that says what
to change."""

import re
import textwrap

import pytest

from phantora_ns.config import (
    ConfigError,
    default_cluster,
    list_clusters,
    list_gpus,
    load_cluster,
    load_gpu,
    units,
)
from phantora_ns.config.device_conf import device_lines, write_device_conf
from phantora_ns.protocol import CallClass
from phantora_ns.sim.topology import Topology

GOOD = """
gpu = "h100"

[network]
kind = "rail"
nic_bandwidth = "400 Gbit/s"
"""
GRAPH = """
gpu = "h100"
nodes = 2
gpus_per_node = 1
[network]
kind = "graph"
[[network.switch]]
name = "s"
[[network.link]]
a = "node-0/nic-0"
b = "s"
bandwidth = "400 Gbit/s"
latency = "1 us"
"""


@pytest.fixture
def cluster(tmp_path):
    """Loads a cluster from text."""

    def load(text, **sizes):
        path = tmp_path / "mine.toml"
        path.write_text(textwrap.dedent(text))
        return load_cluster(path, **sizes)

    return load


@pytest.mark.parametrize("name", list_clusters())
def test_every_shipped_cluster_loads_and_is_sound(name):
    loaded = load_cluster(name)
    Topology.build(loaded).check()
    assert loaded.name == name and loaded.description
    if not name.endswith("1x8") and not name.startswith("example"):
        assert load_cluster(name, nodes=9, gpus_per_node=3).world_size == 27


def test_the_clusters_that_are_promised_are_there():
    expected = {
        f"{gpu}-{kind}"
        for gpu in ("h200", "h100", "a100")
        for kind in ("1x8", "rail", "switch", "fat-tree")
    }
    assert expected <= set(list_clusters())
    assert default_cluster() == "h200-rail" and load_cluster().gpu == "h200"


def test_open_sizes_follow_the_arguments():
    assert (
        load_cluster("h200-rail", 3, 4).nodes,
        load_cluster("h200-rail", 3, 4).gpus_per_node,
    ) == (3, 4)
    assert (load_cluster("h200-rail").nodes, load_cluster("h200-rail").gpus_per_node) == (1, 8)
    assert load_cluster("h200-1x8", 1, 2).world_size == 2


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"nodes": 2},
            "nodes: the file says 1 and the command asks for 2; change one of them, "
            "or remove the line so that the command decides",
        ),
        (
            {"gpus_per_node": 9},
            "gpus_per_node: 9 was asked for, and this cluster has at most 8; "
            "raise max_gpus_per_node in a file of your own",
        ),
        ({"gpus_per_node": 0}, "gpus_per_node: 0 was asked for; ask for at least 1"),
    ],
)
def test_sizes_that_contradict_the_file(sizes, message):
    with pytest.raises(ConfigError) as caught:
        load_cluster("h200-1x8", **sizes)
    assert str(caught.value).endswith(f"h200-1x8.toml: {message}")


@pytest.mark.parametrize(
    ("change", "key", "problem"),
    [
        (
            {"nic_bandwidth": "nic_bandwith"},
            "network.nic_bandwidth",
            "is missing; did you mean 'nic_bandwith'?",
        ),
        (
            {'kind = "rail"': 'kind = "rail"\nnodes_per_leef = 2'},
            "network.nodes_per_leef",
            "unknown key; did you mean 'nodes_per_leaf'?",
        ),
        (
            {'gpu = "h100"': 'gpu = "h10"'},
            "gpu",
            f"'h10' is not one of {', '.join(sorted(list_gpus()))}; did you mean 'h100'?",
        ),
        (
            {'kind = "rail"': 'kind = "rial"'},
            "network.kind",
            "'rial' is not one of fat-tree, graph, none, rail, switch; did you mean 'rail'?",
        ),
        (
            {'"400 Gbit/s"': '"400"'},
            "network.nic_bandwidth",
            "'400' has no unit; write it as \"400 Gbit/s\"",
        ),
        (
            {'"400 Gbit/s"': "400"},
            "network.nic_bandwidth",
            '400 is not a bandwidth; write it with its unit, in quotes, such as "400 Gbit/s"',
        ),
        (
            {'"400 Gbit/s"': '"400 Gb/s"'},
            "network.nic_bandwidth",
            "'400 Gb/s': unknown unit 'Gb/s' for a bandwidth; write it as \"400 Gbit/s\"",
        ),
        (
            {'"400 Gbit/s"': '"0 Gbit/s"'},
            "network.nic_bandwidth",
            "'0 Gbit/s' is not positive; a bandwidth is more than zero, such as \"400 Gbit/s\"",
        ),
        ({'gpu = "h100"': 'gpu = "h100"\nnodes = "two"'}, "nodes", "'two' is not an integer"),
        ({'gpu = "h100"': 'gpu = "h100"\nnodes = true'}, "nodes", "True is not an integer"),
        (
            {'gpu = "h100"': 'gpu = "h100"\nnodes = 0'},
            "nodes",
            "0 is out of range; it must be at least 1",
        ),
        (
            {'gpu = "h100"': 'gpu = "h100"\nnetwrok = 1'},
            "netwrok",
            "unknown key; did you mean 'network'?",
        ),
        (
            {"[network]": '[server]\ninterconnect = "pcie"\n[nccl]\npxn = true\n[network]'},
            "nccl.pxn",
            'needs NVLink between a server\'s GPUs; remove it or set server.interconnect = "nvswitch"',
        ),
        (
            {"[network]": '[nccl]\nnvls = "yes"\n[network]'},
            "nccl.nvls",
            "'yes' is not true or false",
        ),
        (
            {"[network]": '[[fault]]\nspeed = "50%"\n[network]'},
            "fault[1]",
            "names either a link (with bandwidth) or a gpu (with speed); give exactly one of them",
        ),
        (
            {"[network]": '[[fault]]\nlink = "node-0/nic-0"\nbandwidth = "0%"\n[network]'},
            "fault[1].bandwidth",
            "must be at least 0.0001% and at most 100%; a link that carries nothing would stop the job for good",
        ),
        (
            {"[network]": '[[fault]]\nlink = "node-0/nci-0"\nbandwidth = "50%"\n[network]'},
            "fault[1].link",
            "nothing is called 'node-0/nci-0'; did you mean 'node-0/nic-0'?",
        ),
        (
            {
                "[network]": '[[fault]]\nlink = "node-0/nic-0 - rail-1"\nbandwidth = "50%"\n[network]'
            },
            "fault[1].link",
            "no link 'node-0/nic-0 - rail-1'; node-0/nic-0 is joined to node-0/gpu-0, rail-0",
        ),
        (
            {"[network]": '[[fault]]\ngpu = "node-9/gpu-0"\nspeed = "50%"\n[network]'},
            "fault[1].gpu",
            "nothing is called 'node-9/gpu-0'; did you mean 'node-1/gpu-0'?",
        ),
        (
            {
                "[network]": '[[fault]]\ngpu = "node-0/gpu-0"\nspeed = "50%"\nfrom = "2 s"\nto = "1 s"\n[network]'
            },
            "fault[1].to",
            "is not after `from`",
        ),
    ],
)
def test_each_mistake_is_named_with_its_key_and_a_way_out(cluster, change, key, problem):
    text = GOOD
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(ConfigError) as caught:
        cluster(text, nodes=2)
    file, rest = str(caught.value).split("mine.toml: ", 1)
    assert rest.startswith(f"{key}: {problem}"), rest


@pytest.mark.parametrize(
    ("extra", "key", "problem"),
    [
        (
            "",
            "network.link",
            "'node-1/nic-0' and 'node-0/nic-0' are not connected; join their parts by a link",
        ),
        (
            '[[network.link]]\na = "node-1/nic-0"\nb = "S"\nbandwidth = "1 GB/s"\nlatency = "1 us"',
            "network.link[2].b",
            "no cable can join 'S': no such thing",
        ),
        (
            '[[network.link]]\na = "node-1/nic-1"\nb = "s"\nbandwidth = "1 GB/s"\nlatency = "1 us"',
            "network.link[2].a",
            "no cable can join 'node-1/nic-1': no such thing; did you mean 'node-1/nic-0'?",
        ),
        (
            '[[network.link]]\na = "s"\nb = "node-0/nic-0"\nbandwidth = "1 GB/s"\nlatency = "1 us"',
            "network.link[2]",
            "'s' and 'node-0/nic-0' are joined twice; give one link with the sum",
        ),
        (
            '[[network.link]]\na = "node-1/nic-0"\nb = "s"\nbandwidth = "1 GB/s"',
            "network.link[2].latency",
            "is missing; add it",
        ),
        (
            '[[network.switch]]\nname = "s"',
            "network.switch[2].name",
            "'s' is given twice; names of switches differ",
        ),
    ],
)
def test_mistakes_in_an_explicit_graph(cluster, extra, key, problem):
    with pytest.raises(ConfigError) as caught:
        cluster(GRAPH + extra)
    assert f"mine.toml: {key}: {problem}" in str(caught.value)


def test_files_that_are_no_cluster(tmp_path):
    with pytest.raises(ConfigError, match="no such cluster; did you mean 'h200-rail'"):
        load_cluster("h200-rial")
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load_cluster(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("gpu = ")
    with pytest.raises(ConfigError, match="is not a TOML file"):
        load_cluster(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_cluster(broken)
    with pytest.raises(ConfigError, match='kind: "none" joins nothing, and 2 nodes were asked for'):
        broken.write_text('gpu = "h100"\n[network]\nkind = "none"\n')
        load_cluster(broken, nodes=2)
    with pytest.raises(
        ConfigError, match="rail-0 and rail-1|2 leaf switches and no spine joins them"
    ):
        broken.write_text(
            'gpu = "h100"\n[server]\ninterconnect = "pcie"\n[network]\nkind = "rail"\nnic_bandwidth = "1 GB/s"\n'
        )
        load_cluster(broken, nodes=2, gpus_per_node=2)


def test_faults_become_links_and_gpus_with_times(cluster):
    loaded = cluster(
        GOOD
        + """
[[fault]]
link = "node-1/nic-2 -> rail-2"
bandwidth = "50%"
from = "2 s"
to = "3 s"
[[fault]]
link = "node-0/nic-0 - rail-0"
bandwidth = "25%"
[[fault]]
gpu = "node-1/gpu-5"
speed = "90%"
""",
        nodes=2,
    )
    topology = Topology.build(loaded)
    one, *both = topology.faults
    assert (topology.link_names[one[0]], *one[1:]) == (
        "node-1/nic-2 -> rail-2",
        2 * 10**9,
        3 * 10**9,
        0.5,
    )
    assert [topology.link_names[fault[0]] for fault in both] == [
        "node-0/nic-0 -> rail-0",
        "rail-0 -> node-0/nic-0",
    ]
    assert all(fault[1:] == (0, None, 0.25) for fault in both)
    assert topology.slow_gpus == [(13, 0, None, 0.9)]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.bytes_per_ns, "400 Gbit/s", 50.0),
        (units.bytes_per_ns, "450 GB/s", 450.0),
        (units.bytes_per_ns, "4.8 TB/s", 4800.0),
        (units.bytes_per_ns, "1 GiB/s", 1.073741824),
        (units.time_ns, "2 us", 2000),
        (units.time_ns, "2s", 2 * 10**9),
        (units.time_ns, "0.35 us", 350),
        (units.size_bytes, "141 GB", 141 * 10**9),
        (units.size_bytes, "80 GiB", 80 * 2**30),
        (units.size_bytes, "653066240 B", 653066240),
        (units.fraction, "50%", 0.5),
        (units.flop_per_ns, "989 TFLOP/s", 989000.0),
        (units.hertz, "1.98 GHz", 1.98e9),
    ],
)
def test_units(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("model", list_gpus())
def test_every_gpu_model_loads(model):
    gpu = load_gpu(model)
    assert gpu.context_bytes + gpu.comm_bytes < gpu.memory_bytes / 20
    assert gpu.attributes[75] == gpu.compute_major and gpu.attributes[16] == gpu.multiprocessors
    assert {"bf16", "fp16", "fp32"} <= set(gpu.peak_flop_per_ns)


def test_an_h200_reports_the_memory_that_was_measured():
    """cudaMemGetInfo after start-up with one 2 MiB segment held, and after an all-reduce with
    20,971,520 B reserved."""
    gpu = load_gpu("h200")
    free = gpu.memory_bytes - gpu.context_bytes
    assert free - 2 * 2**20 == 149_454_716_928
    assert free - gpu.comm_bytes - 20_971_520 == 148_554_907_648


def test_unknown_gpu():
    with pytest.raises(ConfigError, match="no GPU model 'h20'; did you mean 'h200'"):
        load_gpu("h20")


@pytest.mark.parametrize("model", list_gpus())
def test_device_conf_has_exactly_the_fields_of_the_interceptor(root, tmp_path, model):
    source = (root / "libintercept" / "base" / "device.h").read_text()
    struct = re.search(r"struct ph_device_spec \{(.*?)\n\};", source, re.S)[1]
    fields = set(re.findall(r"(\w+)(?=\[\w+\];|[;,])", re.sub(r"/\*.*?\*/", "", struct)))
    write_device_conf(load_gpu(model), tmp_path / "device.conf")
    lines = (tmp_path / "device.conf").read_text().splitlines()
    assert lines == device_lines(load_gpu(model))
    keys = [line.split(" ", 1)[0] for line in lines]
    assert len(keys) == len(set(keys))
    plain = {key for key in keys if not key.startswith(("attribute.", "cost.", "power."))}
    assert plain == fields - {"attributes", "call_cost", "power"}
    costs = {key.partition(".")[2] for key in keys if key.startswith("cost.")}
    assert costs == set(CallClass.LABELS) - {"clock", "comm_init"}  # those two cost nothing
    limit = (
        int(re.search(r"attributes\[(\d+)\]", struct)[1])
        if re.search(r"attributes\[(\d+)\]", struct)
        else 192
    )
    assert all(
        0 < int(key.partition(".")[2]) < limit for key in keys if key.startswith("attribute.")
    )


@pytest.mark.parametrize("model", list_gpus())
def test_data_sheets_agree_with_themselves(model):
    """fp32 is multiprocessors x cores x 2 x clock, the cores of a multiprocessor being those of its
    compute capability (CUDA C programming guide, arithmetic throughput); the memory's bandwidth
    follows from its bus and clock, to a few percent."""
    gpu = load_gpu(model)
    cores = {(8, 0): 64, (8, 9): 128, (9, 0): 128, (10, 0): 128}[
        gpu.compute_major, gpu.compute_minor
    ]
    assert gpu.peak_flop_per_ns["fp32"] == pytest.approx(
        gpu.multiprocessors * cores * 2 * gpu.attributes[13] * 1e-6, rel=0.03
    )
    assert gpu.memory_bytes_per_ns == pytest.approx(
        gpu.attributes[37] / 8 * 2 * gpu.attributes[36] * 1e-6, rel=0.03
    )


@pytest.mark.parametrize(
    "line,said",
    [
        ('nic_bandwidth = "1e400 Gbit/s"', "network.nic_bandwidth: .* beyond"),
        ('nic_bandwidth = "1e-300 Gbit/s"', "network.nic_bandwidth: .* 1 kB/s"),
        ('nic_bandwidth = "1e-400 Gbit/s"', "network.nic_bandwidth: .* not positive"),
        ('nic_latency = "1e400 us"', "network.nic_latency: .* beyond"),
        ("spines = 1000000000", "network.spines: .* at most 4096"),
        ("spines = 4\noversubscription = inf", "network.oversubscription: .* at most"),
        ("spines = 4\noversubscription = nan", "network.oversubscription: .* out of range"),
        (f"spines = 4\noversubscription = 1{400 * '0'}", "network.oversubscription: .* at most"),
        ('efficiency = "1e-20%"', "network: .* 1 kB/s"),
        (f"spines = {5000 * '9'}", "is not a TOML file"),
        (f"spines = {5000 * '['}", "is not a TOML file"),
    ],
)
def test_a_number_that_is_no_quantity_is_refused(cluster, line, said):
    own = [] if line.startswith("nic_bandwidth") else ['nic_bandwidth = "400 Gbit/s"']
    text = "\n".join(['gpu = "h100"', "[network]", 'kind = "rail"', *own, line])
    with pytest.raises(ConfigError, match=said):
        cluster(text, nodes=4)


def test_faults_multiply_to_no_less_than_a_job_can_end_with(cluster):
    fault = '[[fault]]\nlink = "node-0/nic-0"\nbandwidth = "0.001%"\n'
    cluster(GOOD + fault, nodes=2)
    with pytest.raises(ConfigError, match="1 kB/s"):
        cluster(GOOD + 3 * fault, nodes=2)
    with pytest.raises(ConfigError, match=r"fault\[1\].bandwidth: .* 0.0001%"):
        cluster(GOOD + fault.replace("0.001", "1e-300"), nodes=2)


def test_a_cluster_that_would_not_fit_in_memory_is_refused_before_it_is_built(cluster, monkeypatch):
    monkeypatch.setattr(Topology, "build", lambda cluster: pytest.fail("it was built"))
    with pytest.raises(ConfigError, match="1000000 is too many; at most 1000"):
        cluster(GOOD, nodes=1_000_000)
    with pytest.raises(ConfigError, match="nodes: 1000000 is out of range"):
        cluster("nodes = 1_000_000\n" + GOOD)
    with pytest.raises(ConfigError, match="gpus_per_node: .* cables"):
        cluster("max_gpus_per_node = 1024\n" + GOOD, nodes=1000)
    with pytest.raises(ConfigError, match="network.spines: .* cables"):
        cluster(GOOD + "spines = 4096\nnodes_per_leaf = 1", nodes=1000)
