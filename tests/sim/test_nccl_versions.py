"""What NCCL's releases choose: the constants against the libraries themselves, and what differs."""

import struct
from pathlib import Path

import nvidia.nccl
import pytest

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.config.nccl import measured_version, nccl_constants, nccl_versions
from phantora_ns.sim._nccl_tuning import PROTOCOL_NAMES, Tuner
from phantora_ns.sim.collectives import KINDS, CollectiveModel
from phantora_ns.sim.topology import Topology

VERSIONS = {version.minor_text: version for version in nccl_versions()}
AMPERE, HOPPER, BLACKWELL = 8, 9, 10
LIBRARY = Path(next(iter(nvidia.nccl.__path__))) / "lib" / "libnccl.so.2"


def release_of(library):
    """NCCL's own text in the file."""
    start = library.index(b"NCCL version 2.") + len(b"NCCL version ")
    return library[start : start + 16].split(b" ")[0].split(b"+")[0].split(b"\0")[0].decode()


@pytest.fixture(scope="module")
def library():
    return LIBRARY.read_bytes()


def doubles(*numbers):
    return struct.pack(f"<{len(numbers)}d", *numbers)


def floats(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


@pytest.mark.parametrize("major", (AMPERE, HOPPER, BLACKWELL))
def test_the_constants_are_those_in_the_library(library, major):
    """The tables lie in the library of the wheel as the compiler put them there."""
    release = release_of(library)
    if release not in map(str, VERSIONS.values()):
        pytest.skip(f"NCCL {release} is not one of the known releases")
    constants = nccl_constants(VERSIONS[release.rpartition(".")[0]], major)
    for speeds in (constants.intra_speeds, constants.inter_speeds):
        assert floats(*speeds) in library
    for row in (
        constants.ring_ll128_per_nodes,
        constants.tree_ll128_per_nodes,
        constants.tree_per_nodes,
        (39.0, *constants.ll_intel),
        (87.7, *constants.ll_amd),
    ):
        assert doubles(*row) in library
    for row in constants.tree_correction:
        assert floats(*row) in library
    for table in (constants.nvlink_latency, constants.pcie_latency, constants.network_latency):
        both = (*table["tree"], *table["ring"])
        assert floats(*both) in library or doubles(*both) in library


def test_the_times_were_measured_with_one_of_them():
    assert load_gpu("h200").nccl.constants == nccl_constants(measured_version(), HOPPER)


@pytest.mark.parametrize("major", (AMPERE, HOPPER))
def test_on_ampere_and_hopper_only_messages_differ(major):
    """All else of the tuning code is the same in the four releases (docs/nccl.md)."""

    def without_messages(version):
        found = vars(nccl_constants(VERSIONS[version], major)).copy()
        for name in ("pair_ll_per_message", "pair_network_bandwidth", "pair_batch"):
            del found[name]
        if version == "2.27":  # PAT is in no table there; NVLS trees had another latency
            for table in ("nvlink_latency", "pcie_latency", "network_latency"):
                later = getattr(nccl_constants(VERSIONS["2.28"], major), table)
                found[table] = found[table] | {name: later[name] for name in ("pat", "nvls_tree")}
        return found

    assert all(without_messages(v) == without_messages("2.28") for v in VERSIONS)


def model_of(version, name, nodes, gpus):
    cluster = load_cluster(name, nodes, gpus)
    model = CollectiveModel(Topology.build(cluster), cluster.gpu_model)
    model.use(nccl_constants(VERSIONS[version], cluster.gpu_model.compute_major))
    return model


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "nodes"), [("h200-1x8", 1), ("h200-rail", 4)])
def test_collectives_on_hopper_are_the_same_under_every_release(version, name, nodes):
    one, measured = (model_of(v, name, nodes, 8) for v in (version, "2.28"))
    members = [range(8 * nodes), range(0, 8 * nodes, 8), range(2)]
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for gpus in members:
            for power in range(4, 33, 2):
                number = KINDS.index(kind)
                assert one.plan(number, gpus, 1 << power) == measured.plan(number, gpus, 1 << power)


def messages(version, ranks, nodes, nic=50.0):
    """(protocol, channels) of messages by size, in a communicator."""
    constants = nccl_constants(VERSIONS[version], HOPPER)
    rails = 1 if nodes == 1 else min(8, ranks // nodes)
    tuner = Tuner(constants, ranks, nodes, rails, 370.8, nic)
    choices = {power: tuner.choose_pair(1 << power) for power in (10, 14, 15, 17, 19, 21, 26)}
    return {p: (PROTOCOL_NAMES[c.protocol], c.channels) for p, c in choices.items()}


def test_a_message_is_ll_by_the_channels_it_uses_since_2_29():
    """src/enqueue.cc, addP2pToPlan: 16 KiB for each channel that a peer may have (32 on one NVLink
    server), since 2.29 for each channel that the message uses; one per 64 KiB."""
    assert messages("2.27", 2, 1) == messages("2.28", 2, 1)
    assert messages("2.28", 2, 1) == {
        10: ("LL", 1),
        14: ("LL", 2),
        15: ("LL", 4),
        17: ("LL", 16),
        19: ("LL", 16),
        21: ("Simple", 16),
        26: ("Simple", 16),
    }
    assert messages("2.29", 2, 1) == messages("2.30", 2, 1)
    assert messages("2.29", 2, 1) == {
        10: ("LL", 1),
        14: ("LL", 1),
        15: ("Simple", 1),
        17: ("Simple", 2),
        19: ("Simple", 8),
        21: ("Simple", 16),
        26: ("Simple", 16),
    }


@pytest.mark.parametrize(
    ("ranks", "nodes", "nic", "before", "since"),
    [
        # 16 channels. 2.28: two for a peer, one from 33 ranks on. 2.29: one per 14 GB/s of the NIC, as
        # a power of two, halved while the peers of a round, 8 to a channel, do not fit.
        (16, 2, 50.0, 2, 4),
        (16, 2, 25.0, 2, 2),
        (16, 2, 12.5, 2, 1),
        (32, 4, 50.0, 2, 4),
        (64, 8, 50.0, 1, 2),
        (128, 16, 50.0, 1, 1),
    ],
)
def test_channels_of_a_peer_across_servers(ranks, nodes, nic, before, since):
    """src/graph/paths.cc, ncclTopoGetNchannels and ncclTopoComputeP2pChannels."""
    for version in VERSIONS:
        tuner = Tuner(nccl_constants(VERSIONS[version], HOPPER), ranks, nodes, 8, 370.8, nic)
        assert tuner.pair_channels == 16
        expected = before if version in ("2.27", "2.28") else since
        assert tuner._channels_of_remote_peer(ranks) == expected


def test_blackwell_differs_in_every_release():
    """2.27 doubled Hopper's figures; each later release measured some of them."""
    rings = {v: nccl_constants(VERSIONS[v], BLACKWELL).ring_ll128_per_nodes for v in VERSIONS}
    assert rings["2.27"] == (73.4, 73.4, 73.4) and rings["2.28"] == (73.4, 34.6, 73.4)
    assert rings["2.29"] == rings["2.30"] == (40.0, 40.0, 40.0)
    fastest = {v: nccl_constants(VERSIONS[v], BLACKWELL).inter_speeds[:3] for v in VERSIONS}
    assert fastest == {
        "2.27": (48.0, 45.1, 42.0),
        "2.28": (96.0, 48.0, 45.1),
        "2.29": (96.0, 80.0, 48.0),
        "2.30": (96.0, 86.0, 80.0),
    }
