"""Why it exists: the tables [contention] and [power] of a GPU model's file scale every step, so a
value that is missing or cannot be right is named before a run starts."""

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from phantora_ns.config import ConfigError, list_gpus, load_gpu
from phantora_ns.config.gpu_tables import contention_of, power_of
from phantora_ns.config.toml_table import Table
from phantora_ns.model.power import Power

H200 = tomllib.loads((resources.files("phantora_ns") / "data" / "gpus" / "h200.toml").read_text())


def with_entry(name: str, key: str, value) -> Table:
    """The H200's file with only its table `name`, with one value changed or (None) left out."""
    table = {known: entry for known, entry in H200[name].items() if known != key}
    return Table(Path("x.toml"), {name: table if value is None else {**table, key: value}})


@pytest.mark.parametrize("model", list_gpus())
def test_every_gpu_model_has_its_shares(model):
    found = load_gpu(model).contention
    shares = (found.memory, found.gemm, found.attention, found.collective)
    assert all(0 <= share < 1 for share in shares) and found.held > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gemm", None),
        ("memory", 0.05),
        ("collective", "-5%"),
        ("held", None),
        ("held", -1),
        ("held", "24"),
        ("held", 132),
        ("tile_start", 0.5),
        ("tile_rate", "0%"),
        ("throttle", "120%"),
        ("throttle", True),
    ],
)
def test_a_contention_that_is_missing_or_cannot_be_is_named(name, value):
    with pytest.raises(ConfigError, match=f"contention.{name}"):
        contention_of(with_entry("contention", name, value), 132)


def test_a_table_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="contention.*is missing"):
        contention_of(Table(Path("x.toml"), {}), 132)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("low", "90%"),
        ("gain_compute", "150%"),
        ("window", "3"),
        ("window", "0 s"),
        ("weight_memory", None),
        ("more", 1),
    ],
)
def test_a_power_table_that_cannot_be_is_refused(key, value):
    with pytest.raises(ConfigError, match="power"):
        power_of(with_entry("power", key, value).table("power"))


def test_without_a_power_table_nothing_is_limited():
    assert load_gpu("l40s").power == Power.unlimited()
    assert load_gpu("h200").power.full > 0
