"""Why it exists: a job must see the GPUs that the cluster file promises, through every API."""

import json
import os
import re
import uuid
from pathlib import Path

import pytest

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth" / "h200_props.json"


def test_queries_agree_with_the_model_in_every_condition(run_program, condition, gpu):
    seen = run_program("devices", condition).values
    assert (
        seen["init"] == "0"
        and seen["count_rc"] == "0"
        and seen["count"] == seen["driver_count"] == "8"
    )
    assert seen["listener"] == "0 1 0"
    assert seen["name"] == gpu.name and seen["memory"] == str(gpu.memory_bytes)
    assert (
        seen["peer"] == "1"
        and seen["self"] == "0"
        and seen["atomics"] == "1"
        and seen["priorities"] == "0 -5"
    )
    per_gpu = {33, 34, 50}
    for number, value in gpu.attributes.items():
        if number not in per_gpu:
            assert seen[f"attribute.{number}"] == str(value), f"attribute {number}"
    assert "differs" not in seen.values()
    assert [seen[f"bypci.{i}"] for i in range(8)] == [str(i) for i in range(8)]
    assert (
        len({seen[f"uuid.{i}"] for i in range(8)}) == len({seen[f"pci.{i}"] for i in range(8)}) == 8
    )
    assert (seen["no_device"], seen["no_attribute"], seen["no_place"]) == ("101", "1", "1")


def test_uuids_differ_between_nodes_and_stay_between_runs(run_program):
    def uuids(**variables):
        seen = run_program("devices", **variables).values
        return [seen[f"uuid.{i}"] for i in range(8)]

    first = uuids()
    assert first == uuids() and not set(first) & set(uuids(PHANTORA_NODE="1"))
    assert {uuid.UUID(text).version for text in first} == {5}


@pytest.mark.truth
def test_properties_are_those_of_a_real_h200_to_the_byte(run_program):
    if not TRUTH.exists():
        pytest.skip(f"{TRUTH} is not there: it holds what a real GPU answered")
    truth = json.loads(TRUTH.read_text())
    real, ours = (
        bytes.fromhex(truth["cudaDeviceProp_hex"]),
        bytes.fromhex(run_program("devices").values["properties"]),
    )
    per_gpu = {*range(256, 272), *range(568, 580)}  # uuid; pciBusID, pciDeviceID, pciDomainID
    assert [i for i in range(1200) if i not in per_gpu and real[i] != ours[i]] == []
    seen = run_program("devices").values
    for number, value in truth["cu_attributes"].items():
        if int(number) not in (33, 34, 50):
            assert seen[f"attribute.{number}"] == str(value)


VISIBLE = [
    "",
    "0",
    "3,1",
    "7,6,5,4",
    "0,1,9,2",
    "-1",
    "2,-1,3",
    "1,1",
    "0,x,2",
    "1gpu2,2ampere",
    " 2 , 3",
    "+4",
    "8",
    ",0",
]


@pytest.mark.parametrize("listed", VISIBLE)
def test_cuda_visible_devices_means_what_pytorch_found_the_driver_to_mean(
    run_program, monkeypatch, listed
):
    """Oracle: torch.cuda's own parser, which was written from experiments with the real driver."""
    from torch.cuda import _parse_visible_devices

    everything = run_program("devices").values
    uuids = [everything[f"uuid.{i}"] for i in range(8)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    expected = []
    for ordinal in _parse_visible_devices():
        if ordinal >= 8:
            break
        expected.append(uuids[ordinal])
    seen = run_program("devices", CUDA_VISIBLE_DEVICES=listed).values
    assert [seen[f"uuid.{i}"] for i in range(int(seen["count"]))] == expected
    assert (seen["count_rc"] == "0") == bool(expected)


def test_visible_devices_by_uuid(run_program):
    everything = run_program("devices").values

    def text(ordinal):
        return f"GPU-{uuid.UUID(everything[f'uuid.{ordinal}'])}"

    def visible(listed):
        seen = run_program("devices", CUDA_VISIBLE_DEVICES=listed).values
        return [seen[f"uuid.{i}"] for i in range(int(seen["count"]))]

    assert visible(f"{text(5)},{text(2)}") == [everything["uuid.5"], everything["uuid.2"]]
    assert visible(text(3)[:14]) == [everything["uuid.3"]], "a prefix that names one GPU is enough"
    assert visible("GPU-") == [], "a prefix that names several is not"
    assert visible(f"{text(5)},2") == [everything["uuid.5"]], "ordinals do not mix with UUIDs"
    assert visible(f"{text(5)},{text(5)}") == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda t: t.replace("multiprocessors 132", "multiprocessors many"),
            r"device.conf:\d+: multiprocessors: 'many' is not",
        ),
        (lambda t: t.replace("multiprocessors 132\n", ""), "multiprocessors is missing"),
        (lambda t: t + "nonsense 4\n", r"device.conf:\d+: nonsense: unknown key"),
        (lambda t: t + "attribute.999 4\n", r"attribute.999: no such attribute"),
        (lambda t: t + "attribute.5 99999999999\n", "not a 32-bit integer"),
        (lambda t: t + "nvlinks\n", "nvlinks: value missing"),
        (lambda t: t.replace("memory_bytes ", "memory_bytes -"), "is not a whole number"),
    ],
)
def test_a_bad_device_conf_is_one_line_with_file_and_key(run_program, run_dir, change, expected):
    conf = run_dir / "device.conf"
    conf.write_text(change(conf.read_text()))
    done = run_program("devices", check=False)
    assert (
        done.returncode == 70 and re.search(expected, done.stderr) and done.stderr.count("\n") == 1
    ), done.stderr


def test_a_missing_run_directory_is_one_line(run_program, run_dir):
    os.unlink(run_dir / "device.conf")
    done = run_program("devices", check=False)
    assert done.returncode == 70 and "No such file" in done.stderr and done.stderr.count("\n") == 1
