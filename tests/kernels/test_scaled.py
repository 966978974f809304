"""Another GPU's times, changed by what the rate that limits the work takes more or less, counted, and
never called exact."""

from dataclasses import replace

import pytest
from recorded import record

from phantora_ns.config import ConfigError, load_gpu
from phantora_ns.kernels import rates
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import DatabaseError
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import BoundBy, SignatureKind, Source

ADD = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int)"
)
LARGE = [0, 1, 0, 16384, 16384, 8192, 1, 14, 14, 14, 14, 68, 1, 8192, 8192, 16384]
STREAM = [ADD, 2_000_000, 1, 1, 128, 1, 1, 0, 0, 0, 0, b"1"]
COPY = [0, 1 << 32, 1, 2]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """No database but those of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(databases, "SHIPPED", tmp_path / "shipped")


@pytest.fixture
def measured(tmp_path):
    return record(
        tmp_path / "h200.sqlite",
        (1, LARGE, None, [6_000_000]),
        (0, STREAM, None, [3_000_000]),
        (3, COPY, None, [80_000_000]),
    )


@pytest.mark.parametrize("gpu", ["h100", "a100", "l40s", "b200"])
@pytest.mark.parametrize(
    ("kind", "fields", "source"),
    [
        (SignatureKind.GEMM, LARGE, Source.GEMM),
        (SignatureKind.KERNEL, STREAM, Source.LAW),
        (SignatureKind.MEMORY, COPY, Source.COPY),
    ],
)
@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_what_the_estimates_differ_by_is_added(tmp_path, gpu, kind, fields, source, slower):
    """The estimates differ by what the limiting rate takes more. What a kernel takes beyond its estimate
    is bound by something else, and so equal on both GPUs; of one that is quicker, all is scaled."""
    there, here = (KernelTimes(name).estimate(kind, fields).duration_ns for name in ("h200", gpu))
    measured_ns = round(slower * there)
    path = record(tmp_path / "h200.sqlite", (kind, fields, None, [measured_ns]))
    scaled = KernelTimes(gpu, [path])
    share = rates.load(gpu).scaled_share(kind, scaled.estimate(kind, fields).bound_by, fields)
    whole = here + measured_ns - there if slower > 1 else measured_ns * here / there
    duration_ns, found, _ = scaled.lookup(kind, fields)
    assert duration_ns == pytest.approx(measured_ns + share * (whole - measured_ns), rel=1e-3)
    assert found == source and not scaled.measured(kind, fields)
    assert (scaled.scaled_from, scaled.scaled) == ("h200", 1)


def test_a_function_that_was_measured_has_a_share_of_its_own():
    rates_here = rates.load("h100")
    known = ("void at::native::index_elementwise_kernel<128, 4>(long)",)
    other = ("void f<128, 4>(long)",)
    shares = [rates_here.scaled_share(0, BoundBy.MEMORY, fields) for fields in (known, other, ())]
    assert shares[0] < 0.5 < shares[1] == shares[2]


def test_only_a_gpu_that_was_measured_has_shares_of_its_own():
    for gpu in ("a100", "l40s", "b200"):
        assert all(rates.load(gpu).scaled_share(kind, 0) == 1 for kind in range(5))
    assert rates.load("h100").scaled_share(SignatureKind.CALL, BoundBy.MEMORY) < 1


def test_what_the_gpu_itself_took_goes_before_anothers_times(measured, tmp_path):
    own = record(tmp_path / "h100.sqlite", (0, STREAM, None, [5_000_000]), gpu="h100")
    both = KernelTimes("h100", [own, measured])
    assert both.lookup(0, STREAM)[:2] == (5_000_000, Source.EXACT)
    assert both.lookup(3, COPY) == KernelTimes("h100", [measured]).lookup(3, COPY)
    assert both.measured(0, STREAM) and not both.measured(3, COPY)
    assert (both.scaled_from, both.scaled) == ("h200", 1)


def test_what_nobody_measured_is_the_gpus_own_estimate(measured):
    unheard = ["unheard_of", 100, 1, 1, 128, 1, 1, 0, 0, 0, 0, b""]
    scaled = KernelTimes("a100", [measured])
    assert (
        scaled.lookup(0, unheard) == KernelTimes("a100").lookup(0, unheard) and scaled.scaled == 0
    )


def test_a_gpu_without_a_database_takes_the_one_alike(measured):
    databases.add(databases.user_path("h200"), [measured])
    (found,) = databases.find("a100")
    assert found.gpu == "h200"
    databases.add(
        databases.user_path("a100"),
        [record(measured.with_name("a100.sqlite"), (3, COPY, None, [9]), gpu="a100")],
    )
    assert [found.gpu for found in databases.find("a100")] == ["a100", "h200"]


def sizes(name, *blocks):
    """Launches of one kernel, a number of blocks each."""
    return [[name, 1024 * n, n, 1, 128, 1, 1, 0, 0, 0, 0, b"%d" % n] for n in blocks]


def test_a_gpu_with_recordings_of_its_own_takes_what_it_lacks_from_another(tmp_path):
    """In this order: its own recording; another's recording; what is fitted to its own, unless another has
    many times as many of the function's launches."""
    few, many, none = "_Z3fewPf", "_Z4manyPf", "_Z4nonePf"
    blocks = (1000, 2000, 4000, 8000, 16000)

    def recorded(gpu, **entries):
        return record(
            tmp_path / f"{gpu}.sqlite",
            *(
                (0, fields, None, [ns * fields[2]] * 9)
                for name, (ns, sizes_of) in entries.items()
                for fields in sizes({"few": few, "many": many, "none": none}[name], *sizes_of)
            ),
            gpu=gpu,
        )

    own = recorded("h200", few=(10, blocks[2:3]), many=(10, blocks))
    other = recorded("h100", few=(50, blocks), many=(50, (*blocks[:4], 12000)), none=(30, blocks))
    times, alone = KernelTimes("h200", [own, other]), KernelTimes("h200", [own])
    there = KernelTimes("h100", [other])
    assert times.scaled_from == "h100"

    def asked(name, size):
        """The answers of both GPUs' databases, of the own and of the other's; how many were scaled."""
        (fields,) = sizes(name, size)
        before = times.scaled
        found = [t.lookup(0, fields)[0] for t in (times, alone, there)]
        return *found, times.scaled - before

    both, own_ns, _, scaled = asked(few, 4000)
    assert both == own_ns == 40_000 and not scaled
    both, own_ns, there_ns, scaled = asked(many, 12000)  # only the other recorded it
    assert both != own_ns and abs(there_ns - both) < abs(own_ns - both) and scaled
    both, own_ns, _, scaled = asked(many, 6000)
    assert both == own_ns and not scaled
    for name in (few, none):
        both, own_ns, there_ns, scaled = asked(name, 6000)
        assert both != own_ns and abs(there_ns - both) < abs(own_ns - both) and scaled


@pytest.mark.parametrize(
    ("efficiency", "what"),
    [
        ({"also": "h200"}, "efficiency.also: names the file itself"),
        ({"like": "h200"}, "efficiency.like: names the file itself"),
        ({"like": "h100", "also": "a100"}, "efficiency.also: does not go with `like`"),
    ],
)
def test_a_file_names_one_other_model(efficiency, what):
    with pytest.raises(ConfigError, match=what):
        rates.of(replace(load_gpu("h200"), efficiency=efficiency))


def test_nothing_is_scaled_to_a_gpu_that_names_no_model(measured):
    h100 = record(measured.with_name("h100.sqlite"), (3, COPY, None, [9]), gpu="h100")
    b200 = record(measured.with_name("b200.sqlite"), (3, COPY, None, [9]), gpu="b200")
    for gpu, files in (("h200", [b200]), ("a100", [h100]), ("a100", [measured, h100])):
        with pytest.raises(DatabaseError, match="choose the simulated GPU's file"):
            databases.open_all(files, gpu)
        with pytest.raises(DatabaseError, match="choose the simulated GPU's file"):
            KernelTimes(gpu, files)


def test_an_h100_has_the_h200s_law_of_clocks_but_for_what_was_measured_on_it():
    own, other = load_gpu("h100").power, load_gpu("h200").power
    measured = {"idle", "drawn", "per_flop", "recorded_in", "follows"}
    measured |= {"attention_per_flop", "attention_base"}
    assert own == replace(other, **{name: getattr(own, name) for name in measured})
    for bound_by in (BoundBy.COMPUTE, BoundBy.ATTENTION):
        assert own.drawn[bound_by] == other.drawn[bound_by]
    # its memory is slower, so fewer kernels wait for the issue of instructions
    for bound_by in (BoundBy.ISSUE, BoundBy.MIXED):
        assert 0 < own.follows[bound_by] < other.follows[bound_by]
    # another chip's recordings are not its own
    for bound_by, runs in own.recorded_in.items():
        assert runs and not runs.keys() & other.recorded_in[bound_by].keys()
