"""Why it exists: a change from the command line must mean exactly what the same line in the cluster
file means, mistakes included."""

from dataclasses import replace

import pytest

from phantora_ns.config import ConfigError, load_cluster
from phantora_ns.config.changes import Changes

FILE = """gpu = "h100"
[server]
interconnect = "nvswitch"
[network]
kind = "rail"
nic_bandwidth = "400 Gbit/s"
"""


def settings(*texts):
    return Changes(settings=texts)


@pytest.mark.parametrize(
    "old, new, change",
    [
        ('"h100"', '"b200"', "gpu=b200"),
        ('"400 Gbit/s"', '"800 Gbit/s"', "network.nic_bandwidth=800 Gbit/s"),
        ('"400 Gbit/s"', '"800 Gbit/s"', "network.nic_bandwidth = '800 Gbit/s'"),
        ("[network]", "gpus_per_nic = 2\n[network]", "server.gpus_per_nic=2"),
        ("[network]", "[nccl]\nnvls = true\n[network]", "nccl.nvls=true"),
        ('gpu = "h100"', 'gpu = "h100"\nnodes = 3', "nodes=3"),
        ('"400 Gbit/s"', '"400 Gbit/s"\nefficiency = "90%"', "network.efficiency=90%"),
    ],
)
def test_a_setting_is_the_line_in_the_file(tmp_path, old, new, change):
    plain, changed = tmp_path / "plain.toml", tmp_path / "changed.toml"
    plain.write_text(FILE)
    changed.write_text(FILE.replace(old, new))
    wanted = load_cluster(changed)
    assert wanted != load_cluster(plain)
    given = load_cluster(plain, changes=settings(change))
    assert replace(given, name=wanted.name, file=wanted.file) == wanted


def test_slow_parts_are_faults_of_the_file(tmp_path):
    plain, changed = tmp_path / "plain.toml", tmp_path / "changed.toml"
    plain.write_text(FILE)
    changed.write_text(
        FILE
        + '[[fault]]\ngpu = "node-1/gpu-1"\nspeed = "90%"\n'
        + '[[fault]]\ngpu = "node-0/gpu-2"\nspeed = "50%"\n'
        + '[[fault]]\nlink = "node-0/nic-1 - rail-1"\nbandwidth = "75%"\n'
    )
    wanted = load_cluster(changed, 2, 4)
    given = load_cluster(
        plain,
        2,
        4,
        Changes(slow_gpus=("5:10%", "node-0/gpu-2:50%"), slow_links=("node-0/nic-1 - rail-1:25%",)),
    )
    assert len(given.faults) == 3
    assert replace(given, name=wanted.name, file=wanted.file) == wanted


@pytest.mark.parametrize(
    "changes, said",
    [
        (settings("network.nic_bandwidth=800"), "network.nic_bandwidth: 800 is not a bandwidth"),
        (settings("network.nic_bandwith=1 GB/s"), "network.nic_bandwith: "),
        (settings("gpu=h300"), "'h300' is not one of"),
        (settings("gpu"), "is not KEY=VALUE"),
        (settings("=1"), "is not KEY=VALUE"),
        (settings("network..x=1"), "is not KEY=VALUE"),
        (settings("gpu.name=1"), "gpu is no table in the cluster file"),
        (Changes(slow_gpus=("8:10%",)), "there are 8 GPUs; give a rank from 0 to 7"),
        (Changes(slow_gpus=("node-7/gpu-0:10%",)), "node-7/gpu-0"),
        (Changes(slow_gpus=("3",)), "write it as --slow-gpu 3:10%"),
        (Changes(slow_gpus=("3:100%",)), "less than 100%"),
        (Changes(slow_links=("nowhere:nan%",)), "less than 100%"),
        (Changes(slow_links=("nowhere:10%",)), "nowhere"),
    ],
)
def test_mistakes_name_the_option_and_the_key(tmp_path, changes, said):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    with pytest.raises(ConfigError) as caught:
        load_cluster(path, 2, 4, changes)
    message = str(caught.value)
    assert said in message and "mine.toml" in message and len(message.splitlines()) == 1
    option, value = changes.words()
    assert option in message and value in message
