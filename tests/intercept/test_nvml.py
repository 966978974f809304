"""Why it exists: NVML must describe the node's GPUs, all of them, and never invent a reading."""

import uuid

import pytest


def test_nvml_in_every_condition(run_program, condition, gpu):
    done = run_program("nvml", condition, CUDA_VISIBLE_DEVICES="1")
    seen = done.values
    assert seen["init"] == seen["shutdown"] == "0" and seen["count"] == "8", (
        "NVML does not know CUDA_VISIBLE_DEVICES"
    )
    assert (
        seen["name"] == gpu.name
        and seen["capability"] == f"{gpu.compute_major}.{gpu.compute_minor}"
    )
    assert seen["driver"] == "580.159.04" and seen["cuda"] == "13000" and seen["short"] == "7"
    for i in range(8):
        assert seen[f"by_uuid.{i}"] == seen[f"by_pci.{i}"] == str(i)
        assert seen[f"links.{i}"] == seen[f"switches.{i}"] == str(gpu.nvlinks)
    assert (
        seen["p2p_read"] == "0"
        and seen["fabric"] == "0 0"
        and seen["clock"] == str(gpu.attributes[13] // 1000)
    )
    assert seen["temperature"] == "3" and "nvmlDeviceGetTemperature" in done.stderr
    assert (seen["bad_index"], seen["bad_handle"], seen["text"]) == ("2", "2", "Not Supported")


def test_nvml_and_cuda_name_the_same_gpus(run_program):
    nvml, cuda = run_program("nvml").values, run_program("devices").values
    assert [nvml[f"uuid.{i}"] for i in range(8)] == [
        f"GPU-{uuid.UUID(cuda[f'uuid.{i}'])}" for i in range(8)
    ]
    assert [nvml[f"pci.{i}"][4:] for i in range(8)] == [cuda[f"pci.{i}"] for i in range(8)]


def test_nvml_bindings_of_nvidia_agree_with_our_layouts(run_python, gpu):
    """Oracle for the structures' layouts: NVIDIA's own Python binding, which comes with torch's
    wheels."""
    pytest.importorskip("cuda.bindings.nvml", reason="cuda-bindings is not installed")
    source = """
from cuda.bindings import nvml
nvml.init_v2()
print(nvml.device_get_count_v2())
device = nvml.device_get_handle_by_index_v2(3)
print(nvml.device_get_uuid(device))
pci = nvml.device_get_pci_info_v3(device)
print(pci.bus_id, pci.bus, hex(pci.pci_device_id))
"""
    count, name, pci = run_python(source).stdout.splitlines()
    assert count == "8" and name.startswith("GPU-")
    text, bus, device_id = pci.split()
    assert text == "00000000:40:00.0" and bus == "64" and int(device_id, 16) == gpu.attributes[139]
