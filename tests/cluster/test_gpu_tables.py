"""Why it exists: the tables [contention] and [power] of a GPU model's file scale every step, so a
value that is missing or cannot be right is named before a run starts."""

import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from phantora_ns.config import ConfigError, list_gpus, load_gpu
from phantora_ns.config.gpu_tables import contention_of, power_of
from phantora_ns.config.toml_table import Table
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import Database
from phantora_ns.model.power import Power
from phantora_ns.protocol import BoundBy

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
        ("gemm", True),
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
        ("limit", "130 W"),
        ("limit", 690),
        ("idle", None),
        ("compute", "-1 W"),
        ("exponent", 0.5),
        ("link", "0.6 nJ"),
        ("window", "3"),
        ("window", "0 s"),
        ("highest", "1000 MHz"),
        ("recorded", "0 MHz"),
        ("fastest_compute", "2 GHz"),
        ("recorded_in", {"run": "2 GHz"}),
        ("attention_recorded_in", {"run": "0 MHz"}),
        ("recorded_issue", "2 GHz"),
        ("follows_mixed", "120%"),
        ("spread", "12%"),
        ("more", 1),
    ],
)
def test_a_power_table_that_cannot_be_is_refused(key, value):
    with pytest.raises(ConfigError, match="power"):
        power_of(with_entry("power", key, value).table("power"))


def test_without_a_power_table_nothing_is_limited():
    assert load_gpu("l40s").power == Power.unlimited() and not Power.unlimited().known
    assert load_gpu("h200").power.known


def test_a_products_time_is_brought_to_one_clock():
    """The time at the clock of the recordings, whatever clock each run had."""
    power = load_gpu("h200").power
    memory, product, attention = BoundBy.MEMORY, BoundBy.COMPUTE, BoundBy.ATTENTION
    power = replace(
        power,
        recorded=(1755.0, 1600.0, 1800.0, 1755.0, 1755.0),
        recorded_in={product: {"hot": 1400.0, "cool": 1700.0}, attention: {"hot": 1500.0}},
    )
    share = power.recorded_share
    assert share(product, "unknown") == share(memory, "hot") == share(attention, "cool") == 1
    assert share(product, "hot") == 1400 / 1600 and share(product, "cool") == 1700 / 1600
    assert share(attention, "hot") == 1500 / 1800
    assert Power.unlimited().recorded_share(product, "hot") == 1


def test_every_run_whose_clock_is_named_is_in_the_shipped_database():
    with Database.open(databases.shipped_path("h200")) as database:
        runs = {run.uid for run in database.runs()}
    named = load_gpu("h200").power.recorded_in
    assert set(named) == {BoundBy.COMPUTE, BoundBy.ATTENTION}
    assert all(named.values()) and {uid for clocks in named.values() for uid in clocks} <= runs
