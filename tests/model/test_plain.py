"""Why it exists: the hub simulates from the description that the launcher wrote, so what it reads
must equal what was validated, to the last bit; and a damaged description must be named, not used.
"""

import dataclasses
import json

import pytest

from phantora_ns.config import list_clusters, list_gpus, load_cluster, load_gpu
from phantora_ns.config.description import FILE, read_cluster, write_cluster
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.gpu import GpuModel
from phantora_ns.model.plain import from_plain, to_plain


@pytest.mark.parametrize("name", list_clusters())
def test_a_cluster_comes_back_equal(name, tmp_path):
    cluster = load_cluster(name)
    write_cluster(cluster, tmp_path)
    assert read_cluster(tmp_path) == cluster


@pytest.mark.parametrize("model", list_gpus())
def test_a_gpu_model_comes_back_equal(model):
    gpu = load_gpu(model)
    again = from_plain(GpuModel, json.loads(json.dumps(to_plain(gpu))), "gpu")
    assert again == gpu and list(again.attributes) == list(gpu.attributes)


@pytest.fixture
def plain():
    return to_plain(load_cluster())


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda data: data.pop("nodes"), "cluster.nodes: is missing"),
        (lambda data: data.update(more=1), "cluster.more: is unknown"),
        (lambda data: data.update(nodes="2"), "cluster.nodes: '2' is not of type int"),
        (lambda data: data.update(nodes=True), "cluster.nodes: True is not of type int"),
        (lambda data: data["server"].update(interconnect=None), "cluster.server.interconnect"),
        (lambda data: data.update(faults={}), "cluster.faults"),
        (
            lambda data: data["gpu_model"]["host"].update(call_ns=[]),
            "cluster.gpu_model.host.call_ns",
        ),
        (lambda data: data["gpu_model"]["nccl"]["protocols"].append(1), r"protocols\[3\]"),
    ],
)
def test_damage_is_named(plain, change, said):
    change(plain)
    with pytest.raises(ValueError, match=said):
        from_plain(Cluster, plain, "cluster")


def test_descriptions_cannot_be_changed():
    cluster = load_cluster()
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.nodes = 3
    with pytest.raises(TypeError):
        cluster.gpu_model.attributes[1] = 1


def test_no_description_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(OSError, match=FILE):
        read_cluster(tmp_path)
