"""The fitted models: laws that must hold for any sizes, synthetic GPUs whose law must be found
again, and real steps left out."""

import gzip
import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import record

from phantora_ns import cli
from phantora_ns.kernels import rates, signature
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.records import Observation
from phantora_ns.kernels.estimators import attention, gemm
from phantora_ns.kernels.estimators.launch import is_part
from phantora_ns.kernels.evaluation import heldout, trace_launches, trace_signatures, validation
from phantora_ns.kernels.fitted import law, residual
from phantora_ns.kernels.fitted.model import FittedModels
from phantora_ns.kernels.fitted.predictor import FittedPredictor
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import SignatureKind, Source

H200 = rates.load("h200")
TIMES = KernelTimes("h200")
DATA = Path(__file__).resolve().parents[2] / "bench" / "accuracy" / "data"
# The calibration set of bench/accuracy/configs.toml, as far as it has traces; ResNet-50 has nothing
# in common with the others.
CALIBRATION = ("1b-ddp-4k-mbs4", "1b-none-4k-mbs2", "1b-pp2-8k", "8b-fsdp-4k", "13b-tp8-4k")
ADD = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int)"
)
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)"


def product(m, n, k, batch=1) -> list:
    return [0, 1, 0, m, n, k, batch, 14, 14, 14, 14, 68, 1, k, k, m]


def launch(name, blocks, threads=128, identity=b"") -> list:
    return [name, blocks, 1, 1, threads, 1, 1, 0, 0, 0, 0, identity]


def graph(batch, heads, length, size, backward=False, causal=True) -> list:
    return [
        trace_signatures.sdpa_graph(
            [batch, heads, length, size],
            [batch, heads // 4, length, size],
            "c10::BFloat16",
            causal,
            backward,
        )
    ]


def models(found) -> FittedModels:
    return FittedModels(found, H200, TIMES.estimate)


def split(found) -> tuple[list[Observation], list[Observation]]:
    """Three quarters to fit, a quarter to judge, each quarter spread over all."""
    return [s for i, s in enumerate(found) if i % 4 != 1], [
        s for i, s in enumerate(found) if i % 4 == 1
    ]


def errors(found) -> list[float]:
    fitted, left = split(found)
    learned = models(fitted)
    return [
        abs(learned.predict(s.kind, s.fields, s.context).duration_ns / s.median_ns - 1)
        for s in left
    ]


# ---- a known law is found again ----


def test_a_law_of_launches_is_recovered():
    """max(2.4 us, 1.1 us + bytes at 3.1 TB/s), over five decades of size: far from what the
    estimator says."""
    found = []
    for i, blocks in enumerate(int(4 * 1.3**power) for power in range(50)):
        size = blocks * 128 * 8 * 2 * 3
        found.append(
            Observation(
                f"run{i % 5}",
                SignatureKind.KERNEL,
                launch(ADD, blocks),
                ["aten::add", size * 2 // 3, 0, [[size // 6]]],
                max(2400.0, 1100 + size / 3100),
                3,
            )
        )
    assert max(errors(found)) < 0.02


def test_a_law_of_rows_is_recovered_where_only_the_context_tells_the_work():
    found = []
    for i, (rows, width) in enumerate(
        (r, w) for r in (256, 1024, 4096, 8192, 16384, 65536) for w in (768, 2048, 4096, 8192)
    ):
        size = rows * width * 2
        found.append(
            Observation(
                f"run{i % 3}",
                SignatureKind.KERNEL,
                launch(NORM, rows),
                ["aten::rms_norm", size, 0, [[rows, width]]],
                1700 + 2 * size / 2600,
                1,
            )
        )
    assert max(errors(found)) < 0.02


@pytest.mark.parametrize("kind", ["red", "per"])
def test_a_law_of_inductors_reductions_is_recovered(kind):
    """1.5 us + bytes at 2.9 TB/s, whatever block sizes autotuning chose: launches of one grid may
    differ in work by a hundred."""
    found = []
    for i in range(60):
        rows, length, per_block = 512 << i % 7, 128 << i % 5, 1 << i % 4
        words = [0xFFFFFFFF] * 3 + [rows, length, 0, 0]
        fields = launch(
            f"triton_{kind}_fused_sum_{i}",
            max(1, rows // per_block),
            identity=struct.pack("<7I", *words),
        )
        found.append(
            Observation(
                f"run{i % 5}",
                SignatureKind.KERNEL,
                fields,
                None,
                1500 + 4 * rows * length / 2900,
                3,
            )
        )
    judged = errors(found)
    assert sum(judged) / len(judged) < 0.02 and max(judged) < 0.1


def test_a_law_of_products_is_recovered():
    """Whole waves of 128 x 256 tiles at 780 TFLOP/s, 4 us, and the result written at 3.5 TB/s."""
    found = []
    for i, (m, n, k) in enumerate(
        (m, n, k)
        for m in (1024, 2048, 4096, 8192, 14336)
        for n in (2048, 4096, 8192, 16384)
        for k in (1024, 4096, 8192)
    ):
        tiles = math.ceil(m / 128) * math.ceil(n / 256)
        time = 4000 + math.ceil(tiles / 132) * 132 * 2 * 128 * 256 * k / 780e3 + 2 * m * n / 3500
        found.append(
            Observation(f"run{i % 4}", SignatureKind.GEMM, product(m, n, k), None, time, 1)
        )
    judged = errors(found)
    assert np.median(judged) < 0.02 and np.mean(judged) < 0.02


def test_a_law_of_attention_is_recovered():
    found = []
    sizes = (
        (b, n, s) for b in (1, 2, 3, 4, 6, 8) for n in (1024, 2048, 4096, 8192) for s in (64, 128)
    )
    for i, (batch, length, size) in enumerate(sizes):
        call = attention.Attention(batch, 32, 8, length, length, size, True, False)
        found.append(
            Observation(
                f"run{(i // 2 + i // 8) % 4}",  # each of all sizes; each size of heads has a law
                SignatureKind.CUDNN,
                graph(batch, 32, length, size),
                None,
                6000 + attention.flop(call) / 520e3,
                1,
            )
        )
    assert np.mean(errors(found)) < 0.02


@given(
    st.lists(st.tuples(st.floats(1, 1e7), st.floats(1, 1e7)), min_size=4, max_size=20),
    st.floats(0.5, 3),
    st.floats(0, 2),
)
def test_a_law_never_falls_with_work(terms, first, second):
    matrix = np.array([[a, 1.0, b] for a, b in terms])
    found = law.fit(
        matrix, first * matrix[:, 0] + second * matrix[:, 2] + 500, np.arange(len(terms))
    )
    assert (found.weights >= 0).all() and found.times(matrix * 2).min() >= found.times(matrix).min()


def test_other_groups_do_not_move_a_group_that_was_measured_enough():
    """In a family too large for one system, a group whose own measurements lie on its law is predicted there, although
    the laws of all other groups are too short in the mean. Their measurements moved it by a quarter."""
    rng = np.random.default_rng(0)
    count, own = 4 * residual.MOST, 6
    groups = np.arange(count) % 8
    groups[-own:] = 8
    groups.sort()
    values = np.where(groups < 8, np.abs(rng.normal(0, 0.6, count)), rng.normal(0, 0.02, count))
    inputs = residual.Inputs(rng.uniform(0, 40, (count, 2)), groups, groups)
    process = residual.Residual(inputs, values, np.zeros(count, int), 0.0)
    mine = np.full(own, 8)
    mean, _ = process.predict(residual.Inputs(rng.uniform(0, 40, (own, 2)), mine, mine))
    assert np.abs(mean).max() < 0.05


def test_what_is_far_smaller_than_all_measurements_does_not_take_as_long():
    """The smallest measured size takes 1.2 times its estimate, the others 0.9 times: that is no
    floor under everything."""
    estimates = np.append(np.full(10, 100_000.0), np.geomspace(150_000, 2_000_000, 20))
    times = estimates * np.append(np.full(10, 1.2), np.full(20, 0.9))
    found = law.fit(np.stack([estimates, np.ones(30)], axis=1), times, np.arange(30) % 5)
    sizes = np.array([[200.0, 1.0], [2_000.0, 1.0], [20_000.0, 1.0], [100_000.0, 1.0]])
    assert (found.times(sizes) <= 1.2001 * sizes[:, 0]).all() and (
        np.diff(found.times(sizes)) >= 0
    ).all()


@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=3, max_size=8), st.data()
)
def test_non_negative_least_squares_is_optimal(rows, data):
    """The conditions of Karush, Kuhn and Tucker: nothing negative, and no term whose growth would
    help."""
    matrix = np.array(rows)
    target = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=len(rows), max_size=len(rows))))
    found = law.non_negative(matrix, target)
    gradient = matrix.T @ (target - matrix @ found)
    size = float(np.abs(matrix).max())
    # what rounding leaves
    scale = 1e-7 * (1.0 + size * float(np.abs(target).max()) + size**2 * float(np.abs(found).max()))
    assert (
        (found >= 0).all()
        and gradient.max() <= scale
        and np.abs(gradient[found > 1e-9]).max(initial=0.0) <= scale
    )


# ---- laws of the answers ----


def calibrated() -> list[Observation]:
    return [
        s for name in CALIBRATION for s in validation.read(DATA / "traces" / f"{name}.json.xz")[1]
    ]


@pytest.fixture(scope="module")
def real() -> list[Observation]:
    return calibrated()


@pytest.fixture(scope="module")
def learned(real) -> FittedModels:
    return models(real)


sizes = st.integers(16, 40000)


aligned = st.integers(2, 5000).map(lambda size: 8 * size)


@given(aligned, aligned, aligned, st.integers(1, 16))
def test_a_product_is_positive_and_twice_the_rows_take_no_less(learned, m, n, k, batch):
    once = learned.predict(SignatureKind.GEMM, product(m, n, k, batch))
    assert once.duration_ns >= 1 and once.source == 3 and 0 < once.error < 10
    for larger in (
        (2 * m, n, k, batch),
        (m, 2 * n, k, batch),
        (m, n, 2 * k, batch),
        (m, n, k, 2 * batch),
    ):
        assert (
            learned.predict(SignatureKind.GEMM, product(*larger)).duration_ns
            >= 0.95 * once.duration_ns
        )


@given(
    st.integers(1, 8),
    st.sampled_from([8, 32]),
    st.sampled_from([512, 1024, 3000, 8192]),
    st.sampled_from([64, 128]),
    st.booleans(),
    st.booleans(),
)
def test_twice_the_attention_takes_no_less(learned, batch, heads, length, size, backward, causal):
    once = learned.predict(SignatureKind.CUDNN, graph(batch, heads, length, size, backward, causal))
    assert once.source == 4
    for larger in (
        (2 * batch, heads, length),
        (batch, 2 * heads, length),
        (batch, heads, 2 * length),
    ):
        assert (
            learned.predict(SignatureKind.CUDNN, graph(*larger, size, backward, causal)).duration_ns
            >= 0.95 * once.duration_ns
        )


@given(st.integers(1, 1 << 18), st.booleans())
def test_twice_the_blocks_take_no_less(learned, blocks, known):
    def context(n):
        return ["aten::add", n * 128 * 8 * 2 * 2, 0, [[n, 1024]] * 2] if known else None

    times = [
        learned.predict(SignatureKind.KERNEL, launch(ADD, n), context(n))
        for n in (blocks, 2 * blocks)
    ]
    assert times[0].source == 2 and times[1].duration_ns >= 0.95 * times[0].duration_ns > 0


def test_a_measured_signature_comes_back_as_measured(real, learned):
    """Nothing makes the models reproduce what they were fitted to, but the noise that they allow
    for."""
    ratios = [
        abs(math.log(learned.predict(s.kind, s.fields, s.context).duration_ns / s.median_ns))
        for s in real
        if s.median_ns * s.count > 1e6 and s.kind != SignatureKind.MEMORY
    ]
    assert np.median(ratios) < 0.02 and np.percentile(ratios, 90) < 0.10


def test_the_same_observations_give_the_same_times_in_any_order(real, learned):
    other = models(list(reversed(real)))
    for fields in (product(4096, 4096, 1234), product(2048, 24576, 2048)):
        assert other.predict(SignatureKind.GEMM, fields) == learned.predict(
            SignatureKind.GEMM, fields
        )


def test_what_nothing_alike_was_measured_of_is_left_to_the_estimators(learned):
    assert learned.predict(SignatureKind.KERNEL, launch("unheard_of_kernel", 10)) is None
    assert learned.predict(SignatureKind.CALL, ["unheard_of", [1, 2]]) is None
    assert models([]).predict(SignatureKind.GEMM, product(64, 64, 64)) is None


@pytest.mark.parametrize(
    ("kind", "fields", "context"),
    [
        (1, [], None),
        (1, product(-1, 2, 3), None),
        (1, product(1 << 80, 1 << 80, 1 << 80), None),
        (0, [1] * 12, None),
        (2, [[]], None),
        (2, [None], None),
        (3, [0, -5, 2, 2], None),
        (4, ["a"], None),
        (4, [5, 5], None),
        (99, ["x"], None),
        (0, "text", None),
        (0, launch(ADD, 1 << 70), ["a", 1 << 80, 0, [[]]]),
        (None, None, None),
    ],
)
def test_no_input_breaks_the_models(learned, kind, fields, context):
    found = learned.predict(kind, fields, context)
    assert found is None or found.duration_ns >= 1


# ---- left out ----


def test_left_out_steps_are_predicted_better_than_by_the_estimators(real):
    judged = [row for row in heldout.leave_out(real, H200, TIMES.estimate) if row.error is not None]
    fitted, analytic = (
        [abs(math.log(t / row.observation.median_ns)) for row, t in pairs]
        for pairs in ([(r, r.fitted_ns) for r in judged], [(r, r.analytic_ns) for r in judged])
    )
    assert len(judged) > 200
    assert np.mean(fitted) < 0.7 * np.mean(analytic) and np.median(fitted) < 0.6 * np.median(
        analytic
    )
    weights = [r.observation.median_ns * r.observation.count for r in judged]
    assert np.average(fitted, weights=weights) < np.average(analytic, weights=weights)


def test_expected_errors_are_honest(real):
    """A deviation should hold two thirds of the errors; twice that, 95 % of a normal distribution,
    fewer of a real one."""
    judged = [row for row in heldout.leave_out(real, H200, TIMES.estimate) if row.error is not None]
    ratio = np.array(
        [abs(math.log(r.fitted_ns / r.observation.median_ns)) / r.error for r in judged]
    )
    assert 0.5 < np.mean(ratio < 1) < 0.9 and np.mean(ratio < 2) > 0.8


def test_nothing_of_a_configuration_helps_to_judge_it():
    """One configuration alone: what is judged is judged by nothing, so the analytic time stands."""
    found = [
        Observation("a", SignatureKind.GEMM, product(512 * i, 512, 512), None, 1e9, 1)
        for i in range(1, 10)
    ]
    other = [Observation("b", SignatureKind.KERNEL, launch(ADD, 100), None, 5000.0, 1)]
    judged = heldout.leave_out([*found, *other], H200, TIMES.estimate)
    assert (
        all(row.error is None and row.fitted_ns == row.analytic_ns for row in judged)
        and len(judged) == 10
    )


def test_what_others_have_measured_exactly_is_not_judged():
    found = [
        Observation(run, SignatureKind.GEMM, product(512, 512, 512), None, 9000.0, 1)
        for run in "ab"
    ]
    assert heldout.leave_out(found, H200, TIMES.estimate) == []


# ---- parameters and databases ----


class Held:
    """A database of synthetic observations."""

    def __init__(self, found):
        self.found, self.reads = found, 0

    def observations(self):
        self.reads += 1
        return iter(self.found)


def test_databases_are_read_when_first_asked_and_once(real):
    held = Held(real)
    fitted = FittedPredictor([held], H200, TIMES.estimate)
    assert held.reads == 0
    whole = product(4096, 4096, 4096)
    assert fitted.predict(SignatureKind.GEMM, whole).duration_ns > gemm.flop(
        signature.Gemm(*whole)
    ) / H200.peak("bf16")
    fitted.predict(SignatureKind.GEMM, product(4096, 4096, 2048))
    assert held.reads == 1


def test_sizes_that_only_parameters_tell_scale_the_law():
    """A chunked copy of few elements: the launch looks like a full one, its metadata says
    otherwise."""
    found = [
        Observation(
            f"run{i % 3}",
            SignatureKind.KERNEL,
            launch(ADD, blocks),
            None,
            1500 + blocks * 1024 * 6 / 3500,
            1,
        )
        for i, blocks in enumerate(int(100 * 1.5**p) for p in range(18))
    ]
    fitted = FittedPredictor([Held(found)], H200, TIMES.estimate)
    fields = launch(ADD, 20000)
    whole = fitted.predict(SignatureKind.KERNEL, fields)
    assert (
        fitted.predict(SignatureKind.KERNEL, fields, None, (20000 * 1024).to_bytes(4, "little"))
        == whole
    )
    half = fitted.predict(
        SignatureKind.KERNEL, fields, None, (19999 * 512 + 1).to_bytes(4, "little")
    )
    assert half.duration_ns < 0.6 * whole.duration_ns


LISTS = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, "
    "0>, std::multiplies<float>, float>(int)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}>(int)>(int)"
)
MEAN = [
    "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4ELi4EEEEEvT1_",
    *(1024, 1, 1, 32, 16, 1, 0, 0, 0, 0, b"E_\xa9J\x99)%X"),
]


def test_a_size_that_the_operator_tells_too_does_not_scale_the_law():
    """A mean of rows. It took 41.8 us in a real step of the Trainer on an H200 and 45.0 in another. The estimate
    without the launch's parameters counts an output as large as the input, which the law has learned; to scale by the
    difference halved the time."""
    context = ["aten::mean", 8 * 2048 * 2048 * 4, 0, [[8, 2048, 2048]]]
    config = struct.pack("<14i", 4, 2048, 16384, *[0] * 8, 32, 16, 512)
    times = KernelTimes("h200", [databases.shipped_path("h200")])
    without, with_sizes = (
        times.estimate(SignatureKind.KERNEL, MEAN, context, p).duration_ns for p in (None, config)
    )
    assert with_sizes < 0.6 * without
    duration_ns, source, _ = times.lookup(SignatureKind.KERNEL, MEAN, context, config)
    assert source == Source.LAW
    assert duration_ns == pytest.approx(41800, rel=0.1)


def test_only_launches_over_lists_and_concatenations_are_parts_of_an_operator():
    assert is_part(launch(LISTS, 320))
    assert is_part(
        launch(
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<float>(int)", 9
        )
    )
    assert not is_part(MEAN)
    assert not is_part(["not", "a", "launch"])


def test_a_launch_over_lists_takes_no_longer_for_the_operators_other_launches():
    """The operator's inputs are those of all its launches; a launch of 320 blocks has a chunk of each."""
    chunk, found = 65536, []
    for i, blocks in enumerate(range(16, 321, 16)):
        size = 4 * chunk * blocks
        context = ["aten::_foreach_mul_", size, 0, [[chunk * blocks]]]
        taken = 2000 + 2 * size / 3600
        found.append(
            Observation(
                f"run{i % 4}", SignatureKind.KERNEL, launch(LISTS, blocks, 512), context, taken, 3
            )
        )
    learned = models(found)
    many = ["aten::_foreach_mul_", 64 * 4 * chunk * 320, 0, [[64 * chunk * 320]]]
    answer = learned.predict(SignatureKind.KERNEL, launch(LISTS, 320, 512), many)
    assert answer.duration_ns == pytest.approx(found[-1].median_ns, rel=0.02)


def test_filters_with_wide_gaps_do_not_lengthen_those_with_narrow_ones():
    """Convolutions of fcn_resnet101 on an H200: 22 layers with gaps of 2 took 88.6 us each in a real step. With one law
    for all gaps they came out at 112.5."""
    image = ["t", 9, [16, 256, 60, 60], [256 * 3600, 1, 256 * 60, 256]]
    weight = ["t", 9, [256, 256, 3, 3], [256 * 9, 1, 256 * 3, 256]]

    def forward(gap: int) -> list:
        gaps = [[102, [gap, gap]], [104, [gap, gap]], [105, [gap, gap]]]
        rest = [[100, 0], [101, 1], [103, [1, 1]], [106, 2], [700, 1.0], [701, 0.0]]
        return [[[10, sorted([*rest, *gaps, [703, weight], [704, image], [705, image]])]]]

    times = KernelTimes("h200", [databases.shipped_path("h200")])
    narrow, wide = (times.lookup(SignatureKind.CUDNN, forward(gap))[0] for gap in (2, 12))
    assert narrow == pytest.approx(88600, rel=0.1)
    assert wide > 1.2 * narrow


def test_scattered_copies_do_not_slow_down_those_that_are_not():
    """No recording holds strides. Half of these took twice their time, as transposes do."""
    found = []
    for i, blocks in enumerate(int(3000 * 1.1**power) for power in range(40)):
        size = blocks * 128 * 4 * 2
        context = ["aten::copy_", 2 * size, 0, [[size // 128, 64], [size // 128, 64]]]
        plain = TIMES.estimate(SignatureKind.KERNEL, launch(COPY, blocks), context).duration_ns
        taken = plain * (2.0 if i % 2 else 0.95)
        found.append(
            Observation(
                f"run{i % 4}", SignatureKind.KERNEL, launch(COPY, blocks), context, taken, 3
            )
        )
    blocks = 20000
    size = blocks * 128 * 4 * 2
    context = ["aten::copy_", 2 * size, 0, [[size // 128, 64], [size // 128, 64]]]
    plain = TIMES.estimate(SignatureKind.KERNEL, launch(COPY, blocks), context).duration_ns
    answer = models(found).predict(SignatureKind.KERNEL, launch(COPY, blocks), context)
    assert answer.family.startswith("kernel strided")
    assert answer.duration_ns == pytest.approx(0.95 * plain, rel=0.05)


def test_a_law_of_the_cache_does_not_outrun_the_memory():
    """What was measured fits into the cache and takes a third of what memory would; what does not
    fit comes from memory."""
    least = [
        (blocks, blocks * 1024 * 6 / H200.memory_bytes_per_ns)
        for blocks in (100 * 1.3**p for p in range(14))
    ]
    found = [
        Observation(
            f"run{i % 3}", SignatureKind.KERNEL, launch(ADD, int(blocks)), None, 1500 + ns / 3, 1
        )
        for i, (blocks, ns) in enumerate(least)
    ]
    fitted = FittedPredictor([Held(found)], H200, TIMES.estimate)
    least_ns = (200_000 * 1024 * 6 - H200.cache_bytes) / H200.memory_bytes_per_ns
    assert fitted.predict(SignatureKind.KERNEL, launch(ADD, 200_000)).duration_ns >= least_ns


def test_a_database_answers_for_sizes_that_it_does_not_hold(tmp_path):
    """The order of sources, from a real file: exact, then the law of what was measured, then the
    estimator."""

    def taken(blocks):
        return round(1500 + blocks * 1024 * 6 / 3000)

    blocks = [int(50 * 1.4**power) for power in range(24)]
    path = record(
        tmp_path / "h200.sqlite",
        *((0, launch(ADD, n, identity=b"1"), None, [taken(n)]) for n in blocks),
    )
    times = KernelTimes("h200", [path])
    assert times.lookup(0, launch(ADD, blocks[7], identity=b"1"))[:2] == (taken(blocks[7]), 0)
    for n in (77, 3000, 40000):
        found = times.lookup(0, launch(ADD, n, identity=b"2"))
        assert found[1:] == (2, 0) and found[0] == pytest.approx(taken(n), rel=0.02)
    assert times.lookup(1, product(512, 512, 512)) == TIMES.lookup(1, product(512, 512, 512))


# ---- the command ----


def test_overlapped_launches_are_not_observed():
    alone = trace_launches.Launch(3, [1, 64, 2, 2], None, 100.0, 0.0, "", False)
    beside = trace_launches.Launch(3, [1, 64, 2, 2], None, 900.0, 0.5, "", False)
    assert trace_launches.observations("x", [alone, beside, alone]) == [
        Observation("x", 3, [1, 64, 2, 2], None, 100.0, 2)
    ]


def test_shapes_of_another_step_are_refused(tmp_path):
    trace = tmp_path / "t.json"
    trace.write_text(
        json.dumps(
            {"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": {}}]}
        )
    )
    record = tmp_path / "s.json.gz"
    with gzip.open(record, "wt") as file:
        json.dump([["aten::add", [], [], [], []]], file)
    with pytest.raises(trace_launches.TraceError, match="another step"):
        trace_launches.launches(trace, shapes=record)


def test_validation_wants_something_to_leave_out():
    with pytest.raises(validation.ValidationError, match="at least two"):
        validation.lines([DATA / "traces" / "1b-none-4k-mbs2.json.xz"])


def test_validation_prints_families_and_configurations():
    paths = [DATA / "traces" / f"{name}.json.xz" for name in ("1b-none-4k-mbs2", "1b-ddp-4k-mbs4")]
    found = validation.lines(paths, worst=3)
    assert (
        any(line.startswith("gemm ") for line in found)
        and len(found) == len(validation.lines(paths)) + 5
    )
    found = validation.lines(paths, by_configuration=True)
    assert [line.split()[0] for line in found[2:]] == ["1b-ddp-4k-mbs4", "1b-none-4k-mbs2", "all"]
    judged = validation.lines(paths[:1], judge=paths[1:], by_configuration=True)
    assert [line.split()[0] for line in judged[2:]] == ["1b-ddp-4k-mbs4", "all"]


def test_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    names = [
        str(DATA / "traces" / f"{name}.json.xz") for name in ("1b-none-4k-mbs2", "1b-ddp-4k-mbs4")
    ]
    assert cli.main(["kernels", "validate", *names, "--by", "configuration"]) == 0
    assert "1b-none-4k-mbs2" in capsys.readouterr().out
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for mistake in (
        [names[0]],
        ["/dev/null"],
        [str(broken)],
        [str(tmp_path / "none.json")],
        [*names, "--gpu", "none"],
    ):
        assert cli.main(["kernels", "validate", *mistake]) == 2
        out, err = capsys.readouterr()
        assert not out and err.startswith("phantora-ns: ") and err.count("\n") == 1
