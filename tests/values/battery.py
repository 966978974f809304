"""Runs inside an emulated rank: each case computes on small CUDA tensors and on CPU tensors, and
must give the same bits.

Why it exists: the values library runs the CPU's kernels on the device's bytes, so equality is
exact; a difference means an operator was not run, run twice, or run on the wrong bytes. Prints one
JSON object: case -> what was wrong.
"""

import json
import sys
import warnings

import torch
import torch.nn.functional as F


def grid(device, dtype=torch.float32, shape=(6, 8)):
    count = 1
    for n in shape:
        count *= n
    return (
        ((torch.arange(count, dtype=torch.float64) * 0.37 - 5.1) % 3.3 - 1.1)
        .reshape(shape)
        .to(dtype)
        .to(device)
    )


def whole(device, shape=(6, 8), modulus=7):
    return (torch.arange(6 * 8) * 11 % modulus).reshape(shape).to(device)


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def arithmetic(d):
    x = grid(d)
    return [
        x + 1,
        x - x.T.contiguous().T * 2,
        x / 3,
        x**2,
        -x,
        x.abs().sqrt(),
        x @ x.T,
        x > 0,
        x.clamp(-1, 1),
        x.neg().exp(),
    ]


@case
def least_squares(d):
    """The GPU's algorithm leaves the rank out, the CPU's does not. A matrix of full rank, whose
    solution is one; the two choose different algorithms, so its last bits are not compared."""
    solution = torch.linalg.lstsq(
        grid(d, shape=(8, 6)) + 9 * torch.eye(8, 6, device=d), grid(d, shape=(8, 2))
    ).solution
    return [(solution * 1000).round()]


@case
def batches_of_factorisations(d):
    """PyTorch takes MAGMA for them, which wants handles of every library."""
    x = grid(d, shape=(64, 8, 8)) + 9 * torch.eye(8, device=d)
    return [*torch.linalg.lu_factor(x), torch.linalg.solve(x, grid(d, shape=(64, 8, 2)))]


@case
def in_place_once(d):
    x, y = grid(d), grid(d)
    x += 1
    x.mul_(2).add_(y, alpha=3)
    x[2] = 7
    x[:, 1].zero_()
    x.sub_(y).div_(3).clamp_(-2, 2)
    x.masked_fill_(y > 0, 4).copy_(x + y)
    return [x, y]


@case
def foreach_once(d):
    xs, ys = (
        [grid(d), grid(d, shape=(5,)), grid(d, shape=(1,))],
        [grid(d), grid(d, shape=(5,)), grid(d, shape=(1,))],
    )
    torch._foreach_add_(xs, ys, alpha=2)
    torch._foreach_mul_(xs, 0.5)
    torch._foreach_addcmul_(xs, ys, ys, 0.1)
    torch._foreach_lerp_(xs, ys, 0.3)
    half = [x.half() for x in xs]
    torch._foreach_mul_(half, torch.tensor(0.25, device=d))
    return [*xs, *torch._foreach_norm(xs), *torch._foreach_sqrt([x.abs() for x in xs]), *half]


@case
def reductions(d):
    x = grid(d)
    return [
        x.sum(),
        x.mean(1),
        x.max(),
        x.max(0)[0],
        x.max(0)[1],
        x.argmin(1),
        x.norm(),
        x.var(),
        x.prod(),
        x.cumsum(1),
        torch.logsumexp(x, 0),
        x.std(0),
        (x > 0).any(),
        (x > -9).all(1),
        x.sum(dtype=torch.float64),
        x.amax((0, 1)),
    ]


@case
def read_back(d):
    x = grid(d)
    return [
        x.sum().item(),
        int(whole(d).max()),
        x.tolist(),
        bool((x > 0).any()),
        torch.equal(x, x + 0),
        x[2, 3].item(),
        float(x.double().mean()),
        len(whole(d)[0].unique()),
        torch.allclose(x, x * 1.0),
    ]


@case
def histograms_of_whole_numbers(d):
    """The CPU counts floats alone; both count whole numbers exactly, so floats are the oracle."""
    counts = []
    for bins, low, high in ((8, 0, 7), (3, 0, 6), (5, 2, 4), (4, 0, 0)):
        for dtype in (torch.int32, torch.int64, torch.uint8):
            numbers = whole(d).to(dtype)
            counts.append(
                torch.histc(numbers if d != "cpu" else numbers.double(), bins, low, high).to(dtype)
            )
    return counts


@case
def shapes_from_values(d):
    x, k = grid(d), whole(d)
    return [
        torch.nonzero(x > 0),
        x[x > 0.2],
        torch.where(k == 3)[0],
        x.masked_select(k > 2),
        k.unique(),
        *k.flatten().unique(return_inverse=True, return_counts=True),
        k.flatten().bincount(),
        k.flatten().bincount(minlength=20),
        torch.repeat_interleave(k[0], k[1]),
        torch.nonzero(torch.zeros(4, device=d)),
        k.flatten().unique_consecutive(),
        k.unique(dim=0),
        (k > 3).unique(),
        torch.unique_consecutive(k[:, 0], return_counts=True)[1],
    ]


@case
def indexing(d):
    x, k = grid(d), whole(d, modulus=6)
    y = grid(d)
    y[k[0], k[1]] = 9.0
    y[y > 1] = -1
    y.index_add_(0, k[0, :6], x)
    y.scatter_add_(0, k, x)
    y.index_put_((k[2],), x[3], accumulate=True)
    return [
        x[k[0]],
        x.gather(0, k),
        y,
        x.index_select(1, k[0]),
        x.take(k),
        F.embedding(k, x),
        F.one_hot(k, 6),
        x[:, None, ::2],
        x.index_fill(0, k[0, :2], 3),
        torch.bucketize(x, torch.linspace(-1, 1, 5, device=d)),
        x.scatter(0, k[:1], 5.0),
    ]


@case
def making(d):
    return [
        torch.arange(9, device=d),
        torch.zeros(3, 3, device=d),
        torch.full((2, 2), 5, device=d),
        torch.eye(4, device=d),
        torch.linspace(0, 1, 7, device=d),
        torch.tensor([1, 2, 3], device=d),
        torch.tril(torch.ones(4, 4, device=d)),
        torch.ones_like(grid(d)),
        torch.tril_indices(3, 3, device=d),
        torch.empty(5, device=d).fill_(2),
        grid(d).new_zeros(3),
        torch.scalar_tensor(3.5, device=d),
        torch.triu(grid(d)),
        torch.empty(0, 4, device=d).sum(0),
    ]


@case
def layout(d):
    x = grid(d)
    return [
        torch.cat([x, x[:2]]),
        torch.stack([x, x]),
        x.T.contiguous(),
        x.repeat(2, 1),
        x.flip(0),
        x.roll(2),
        x.split(3)[1].clone(),
        x.unfold(0, 3, 1).contiguous(),
        x.view(torch.int32).clone(),
        x.tile(2),
        F.pad(x, (1, 2)),
        *torch.split_copy(x, 2),
        x.expand(3, 6, 8).contiguous(),
        torch.chunk(x, 3, 1)[2].contiguous(),
        x.T.clone(memory_format=torch.preserve_format),
    ]


@case
def ordering(d):
    x, k = grid(d), whole(d)
    return [
        *x.sort(1),
        *x.topk(3, 1),
        x.argsort(0),
        k.flatten().sort(stable=True)[1],
        *x.kthvalue(2, 1),
        x.median(),
        torch.searchsorted(x[0].sort()[0], x[1]),
    ]


@case
def types(d):
    x, k = grid(d), whole(d)
    return [
        x.half() * 2,
        x.bfloat16().sum(1),
        x.double().cos(),
        (x > 0).long().cumsum(0),
        k.byte() + 250,
        k.bool() ^ (x > 0),
        torch.complex(x, x + 1) * 2j,
        torch.complex(x, x).conj() + 1,
        torch.complex(x, x).abs(),
        x.to(torch.int8) << 1,
        k / 2,
        x.bfloat16() @ x.bfloat16().T,
        x.half().cumsum(1),
        torch.view_as_real(torch.complex(x, x).conj().resolve_conj()),
    ]


@case
def networks(d):
    x, k = grid(d), whole(d)
    w, b = grid(d, shape=(4, 8)), grid(d, shape=(4,))
    return [
        F.linear(x, w, b),
        F.softmax(x, 1),
        F.log_softmax(x, 1),
        F.cross_entropy(x, k[:, 0]),
        F.layer_norm(x, (8,)),
        F.relu(x),
        F.gelu(x),
        F.silu(x),
        F.rms_norm(x, (8,)),
        F.mse_loss(x, x + 1),
        F.softmax(x, 0, dtype=torch.float64),
        torch.dot(b, b),
        F.log_softmax(x.bfloat16(), 1, dtype=torch.float32),
        F.binary_cross_entropy_with_logits(x, (x > 0).float()),
    ]


@case
def gradients(d):
    x, w = grid(d).requires_grad_(), grid(d, shape=(4, 8)).requires_grad_()
    loss = F.cross_entropy(F.silu(F.linear(F.layer_norm(x, (8,)), w)), whole(d)[:, 0] % 4)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_([x, w], 0.01)
    return [loss.detach(), norm, x.grad, w.grad]


@case
def narrow_layer_norm(d):
    """A GPU keeps the statistics of 16-bit tensors in float. So the oracle computes in float what
    the GPU is given, and rounds the results."""
    results = []
    for narrow in (torch.bfloat16, torch.float16):
        run_as = narrow if torch.device(d).type == "cuda" else torch.float32
        x, w, b = (
            grid(d, shape=shape).to(narrow).to(run_as).requires_grad_()
            for shape in ((6, 8), (8,), (8,))
        )
        y = F.layer_norm(x, (8,), w, b)
        y.backward((whole(d) / 8).to(run_as))
        results += [t.detach().to(narrow) for t in (y, x.grad, w.grad, b.grad)]
    return results


@case
def wide_softmax_of_narrow_gradients(d):
    """Softmax in float of 16-bit tensors, as under autocast: the gradient comes back narrow."""
    results = []
    for narrow in (torch.bfloat16, torch.float16):
        for softmax in (F.softmax, F.log_softmax):
            x = grid(d).to(narrow).requires_grad_()
            y = softmax(x, 1, dtype=torch.float32)
            y.backward(whole(d) / 8)
            results += [y.detach(), x.grad]
    return results


@case
def optimizers(d):
    results = []
    for options in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        w = torch.nn.Parameter(grid(d))
        optimizer = torch.optim.AdamW([w], lr=0.1, **options)
        for _ in range(3):
            (w**2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results += [w.detach(), optimizer.state[w]["exp_avg"], optimizer.state[w]["step"]]
    return results


@case
def between_host_and_device(d):
    x = grid("cpu")
    y = torch.empty(6, 8, dtype=torch.float64, device=d)
    y.copy_(x)
    back = torch.empty(8, 6).T
    back.copy_(y)
    z = torch.zeros(6, 8, device=d)
    z[1:3].copy_(x[1:3])
    z.T[0].copy_(x[:, 1])
    return [
        y,
        back,
        z,
        x.to(d).to(torch.float16).cpu(),
        y[:, ::2].cpu(),
        y.T.cpu(),
        torch.tensor(3.0) * y,
    ]


@case
def under_modes(d):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Watch():
        x = grid(d)
        x.add_(1).mul_(2)
        y = torch.cat([x, x]).cumsum(0)
    with torch.inference_mode():
        z = grid(d).add_(1) * 2
    with torch.autocast(d, dtype=torch.bfloat16):
        mixed = (grid(d) @ grid(d).T).float()
    batched = torch.vmap(lambda row: row * row.sum())(grid(d))
    return [x, y, z, batched, mixed.shape == (6, 6)]


@case
def outs(d):
    x, y, z = grid(d), torch.empty(6, 8, device=d), torch.empty(6, device=d)
    torch.add(x, 1, out=y)
    torch.sum(x, 1, out=z)
    pieces = [torch.empty(6, 4, device=d), torch.empty(6, 4, device=d)]
    torch.split_with_sizes_copy(x, [4, 4], 1, out=pieces)
    return [y, z, *pieces]


def beside_large(d, *small):
    """A list that a large tensor begins and another ends. Both are zeros, which are known in any
    size."""
    return [torch.zeros(300, 300, device=d), *small, torch.zeros(70000, device=d)]


def tainted(d, value):
    x = grid("cpu")
    x[2, 3] = value
    return x.to(d)


@case
def foreach_beside_large_tensors(d):
    def some():
        return beside_large(d, grid(d), grid(d, shape=(5,)))

    xs, ys, numbers = some(), some(), [9.0, 0.5, -2.0, 9.0]
    torch._foreach_add_(xs, ys, alpha=2)
    torch._foreach_mul_(xs, numbers)
    torch._foreach_addcmul_(xs, ys, ys, torch.tensor(numbers))
    torch._foreach_mul_(xs, torch.tensor(0.25, device=d))
    torch._foreach_lerp_(xs, ys, 0.3)
    new = torch._foreach_add(xs, numbers)
    torch._foreach_copy_(ys, new)
    norms, most = torch._foreach_norm(xs), torch._foreach_max(xs)
    torch._foreach_zero_(new)
    return [tensor for tensors in (xs, ys, new, norms, most) for tensor in tensors[1:3]]


@case
def small_gradients_beside_large_ones(d):
    results = []
    for value in (0.5, float("nan"), float("-inf")):
        parameters = beside_large(d, grid(d), grid(d, shape=(5,)))
        gradients = beside_large(d, tainted(d, value), grid(d, shape=(5,)))
        found = torch.zeros(1, device=d)
        torch._amp_foreach_non_finite_check_and_unscale_(
            gradients, found, torch.full((1,), 0.5, device=d)
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(parameters, 0.01)
        results += [found, norm, *gradients[1:3]]
    return results


@case
def captured_beside_large_tensors(d):
    gradients = beside_large(d, grid(d), grid(d, shape=(5,)))
    found, half = torch.zeros(1, device=d), torch.full((1,), 0.5, device=d)

    def step():
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, half)
        return torch._foreach_norm(gradients)

    if d == "cpu":
        step()
        return [*step()[1:3], *gradients[1:3], found]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norms = step()
    graph.replay()
    graph.replay()
    return [*norms[1:3], *gradients[1:3], found]


@case
def optimizers_of_small_and_large_parameters(d):
    results = []
    for options in ({"fused": True}, {"foreach": True}):
        for kind in (torch.optim.AdamW, torch.optim.SGD):
            parameters = [
                torch.nn.Parameter(x) for x in beside_large(d, grid(d), grid(d, shape=(5,)))
            ]
            optimizer = kind(parameters, lr=0.1, **options)
            for _ in range(3):
                sum((p**2).sum() for p in parameters[1:3]).backward()
                for p in (parameters[0], parameters[3]):
                    p.grad = torch.zeros_like(p)
                optimizer.step()
                optimizer.zero_grad()
            results += [p.detach() for p in parameters[1:3]] + list(
                optimizer.state[parameters[1]].values()
            )
    return results


@case
def a_small_gradients_overflow_halves_the_scale(d):
    """In the second of three steps."""
    parameters = [torch.nn.Parameter(x) for x in beside_large(d, grid(d))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scaler, results = torch.amp.GradScaler(d, init_scale=1024.0), []
    for value in (0.5, float("inf"), -0.5):
        gradients = beside_large(d, tainted(d, value))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        scaler.scale(torch.ones((), device=d))
        scaler.step(optimizer)
        scaler.update()
        results += [parameters[1].detach().clone(), scaler.get_scale()]
    if (
        results[1::2] != [1024.0, 512.0, 512.0]
        or not torch.equal(results[0], results[2])
        or torch.equal(results[2], results[4])
    ):
        raise AssertionError(f"the overflow was not seen: {results}")
    return results


def plain(value):
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj()
        return (
            str(value.dtype),
            list(value.shape),
            value.reshape(-1).contiguous().view(torch.uint8).tolist(),
        )
    return repr(value)


def compare(name, function):
    # two runs: the second finds the first one's freed memory, so what is not written is not zero by
    # luck
    for attempt in (1, 2):
        expected, given = function("cpu"), function("cuda")
        for i, (a, b) in enumerate(zip(expected, given, strict=True)):
            if plain(a) != plain(b):
                yield f"run {attempt}, result {i}: expected {a}, not {b}"


def wrong_with(function, *arguments):
    """What a case yields; an exception is wrong too."""
    try:
        return list(function(*arguments))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def large_results():
    """Large tensors have no values; what small results are made of them must be zero, and never
    what lay there before."""
    grid("cuda").add_(1)
    big = torch.ones(300, 300, device="cuda")
    out = torch.full((300,), 5.0, device="cuda")
    torch.sum(big, 1, out=out)
    for name, value in {
        "sum": big.sum(),
        "max": big.max(),
        "rows": big.mean(1),
        "out": out,
        "found": torch.nonzero(big),
        "norms": torch._foreach_norm([big, big])[0],
    }.items():
        if value.numel() and value.abs().sum().item() != 0:
            yield f"{name}: {value}"


def random_results():
    """Random draws are real, repeat with the device's seed, differ from draw to draw, and leave the
    CPU's generator alone."""
    torch.manual_seed(1)
    before = torch.get_rng_state()

    def draw():
        return (
            torch.rand(100, device="cuda"),
            torch.randperm(100, device="cuda"),
            torch.randn(50, device="cuda").normal_(3, 0.1),
        )

    first, second = draw(), draw()
    if not torch.equal(before, torch.get_rng_state()):
        yield "the CPU's generator moved"
    if first[1].sort()[0].tolist() != list(range(100)):
        yield f"no permutation: {first[1]}"
    if not (
        0 <= first[0].min().item() and first[0].max().item() < 1 and first[0].std().item() > 0.1
    ):
        yield f"not uniform: {first[0]}"
    if abs(first[2].mean().item() - 3) > 0.2:
        yield f"not normal: {first[2]}"
    if torch.equal(first[0], second[0]):
        yield "two draws are equal"
    torch.manual_seed(1)
    if not all(map(torch.equal, first, draw())):
        yield "the same seed gave other numbers"


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # as the values library does: how work is split decides last bits
    wanted = sys.argv[1:]
    functions = {name: lambda name=name: compare(name, CASES[name]) for name in CASES}
    functions |= {"large_results": large_results, "random_results": random_results}
    outcome = {}
    for name, function in functions.items():
        if wanted and name not in wanted:
            continue
        outcome[name] = wrong_with(function)
    print("BATTERY " + json.dumps(outcome))


if __name__ == "__main__":
    main()
