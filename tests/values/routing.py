"""Runs inside emulated ranks under --values balanced: the policy's choices must obey the laws that
jobs rely on.

Why it exists: no oracle knows what a GPU's router would choose. But counts, permutations, masks and
exchanges must be consistent with whatever was chosen, and operators on integers must give the CPU's
bits at sizes at which floats no longer have values. Each case yields its errors. Prints one JSON
object: case -> list of errors.
"""

import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F

TOKENS, EXPERTS, TOP = 4096, 16, 4
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def scores(tokens=TOKENS, experts=EXPERTS):
    return F.linear(
        torch.randn(tokens, 512, device="cuda"), torch.randn(experts, 512, device="cuda")
    )


def spread(counts, total):
    """Whether counts are as even as whole numbers can be."""
    return sum(counts) == total and max(counts) - min(counts) <= 1


@case
def routes_are_even_and_counted(rank):
    for tokens in (TOKENS, TOKENS - 3):
        values, routes = torch.topk(scores(tokens).sigmoid(), TOP, dim=-1, sorted=False)
        flat, total = routes.view(-1), tokens * TOP
        counts = torch.bincount(flat, minlength=EXPERTS).tolist()
        if not spread(counts, total):
            yield f"bincount: {counts}"
        for name, other in {
            "histc": torch.histc(flat, bins=EXPERTS, min=0, max=EXPERTS),
            "histc of int32": torch.histc(flat.int(), bins=EXPERTS, min=0, max=EXPERTS - 1),
            "one_hot": F.one_hot(routes, EXPERTS).sum((0, 1)),
            "sorted": torch.searchsorted(
                flat.sort()[0], torch.arange(EXPERTS + 1, device="cuda")
            ).diff(),
            "unique": flat.unique(return_counts=True)[1],
        }.items():
            if other.tolist() != counts:
                yield f"{name}: {other.tolist()} instead of {counts}"
        if not (routes.sort(1)[0].diff(dim=1) > 0).all().item():
            yield "a token goes to one expert twice"
        if values.abs().sum().item() != 0:
            yield "the values of a large tensor are not zero"


@case
def orders_are_permutations(rank):
    routes = scores().topk(TOP, 1)[1].view(-1)
    everything = torch.arange(routes.numel())
    order = routes.argsort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device="cuda")
    if not torch.equal(order.cpu().sort()[0], everything):
        yield "argsort of routes"
    if not torch.equal(inverse[order].cpu(), everything):
        yield "its inverse"
    if routes[order].diff().lt(0).any().item():
        yield "the order does not sort"
    floats = torch.randn(TOKENS * 8, device="cuda").argsort()
    if not torch.equal(floats.cpu().sort()[0], torch.arange(TOKENS * 8)):
        yield "argsort of floats without values"


@case
def masks_select_what_they_count(rank):
    logits = scores()
    routes = logits.topk(TOP, 1)[1]
    mask = torch.zeros_like(logits).int().scatter(1, routes, 1).bool()
    by_expert = mask.T.contiguous()
    tokens = (
        torch.arange(TOKENS, device="cuda")
        .unsqueeze(0)
        .expand(EXPERTS, -1)
        .masked_select(by_expert)
    )
    counts = mask.sum(0)
    if counts.tolist() != torch.bincount(routes.view(-1), minlength=EXPERTS).tolist():
        yield f"mask: {counts.tolist()}"
    before = torch.cuda.memory_allocated()
    chances = logits.T.contiguous().masked_select(by_expert)
    if (
        torch.cuda.memory_allocated() - before != chances.numel() * 4
        or chances.numel() != counts.sum().item()
    ):
        yield f"{chances.numel()} selected, {torch.cuda.memory_allocated() - before} bytes"
    if not torch.equal(tokens.cpu(), torch.nonzero(by_expert.cpu())[:, 1]):
        yield "masked_select"
    if logits[mask].numel() != mask.sum().item() or len(torch.where(mask)[0]) != mask.sum().item():
        yield "indexing by the mask"
    again = torch.repeat_interleave(torch.arange(EXPERTS, device="cuda"), counts)
    if again.bincount().tolist() != counts.tolist():
        yield "repeat_interleave"


@case
def one_of_many_takes_turns(rank):
    logits = scores()
    for name, routes, places in (
        ("argmax", logits.argmax(1), EXPERTS),
        ("argmin", logits.argmin(1, keepdim=True), EXPERTS),
        ("max", logits.max(1)[1], EXPERTS),
        ("min", logits.min(0)[1], EXPERTS),
        ("draw", torch.multinomial(logits.softmax(-1), 2), EXPERTS),
        ("top of columns", logits.topk(256, 0)[1], TOKENS),
    ):
        counts = torch.bincount(routes.view(-1), minlength=places).tolist()
        if not spread(counts, routes.numel()):
            yield f"{name}: {counts}"


@case
def biases_do_not_attract_everything(rank):
    """A small batch of a large model: what is added to unknown scores is real, and means
    nothing."""
    biased = scores(64).sigmoid() + torch.linspace(0, 1, EXPERTS, device="cuda")
    values, routes = biased.topk(TOP, 1)
    if not spread(routes.view(-1).bincount(minlength=EXPERTS).tolist(), 64 * TOP):
        yield f"top: {routes.view(-1).bincount().tolist()}"
    if not torch.equal(values, biased.gather(1, routes)):
        yield "values are not those of the places"


@case
def masked_groups_are_left_out(rank):
    groups = 4
    grouped = scores(64).sigmoid().view(64, groups, -1)
    chosen = grouped.topk(2, -1)[0].sum(-1).topk(2, -1)[1]
    out = torch.ones(64, groups, dtype=torch.bool, device="cuda").scatter(1, chosen, False)
    values, routes = (
        grouped.masked_fill(out.unsqueeze(-1), float("-inf")).view(64, EXPERTS).topk(TOP, 1)
    )
    if (
        out.gather(1, routes // (EXPERTS // groups)).any().item()
        or not values.isfinite().all().item()
    ):
        yield "an expert of a masked group"
    if not spread(routes.view(-1).bincount(minlength=EXPERTS).tolist(), 64 * TOP):
        yield f"{routes.view(-1).bincount().tolist()}"


@case
def known_scores_are_not_touched(rank):
    known = torch.randn(40, EXPERTS, device="cuda")
    known[3] = 2.0
    for operator in (
        lambda x: x.topk(3, 1),
        lambda x: x.max(1),
        lambda x: (x.argmax(0),),
        lambda x: x.sort(dim=1, stable=True),
    ):
        for mine, other in zip(operator(known), operator(known.cpu()), strict=True):
            if not torch.equal(mine.cpu(), other):
                yield f"{mine.cpu()} instead of {other}"


@case
def checks_for_nan_pass(rank):
    for size in (1 << 20, 1 << 24):
        x = torch.randn(size, device="cuda") * 2
        found = {
            "isnan": torch.isnan(x).any(),
            "isinf": torch.isinf(x).any(),
            "not finite": ~torch.isfinite(x).all(),
            "norm": ~torch.isfinite(x.norm()),
            "sum": torch.isnan(x.sum()),
            "apart": not torch.allclose(x, x + 0),
        }
        yield from (f"{name} of {size}" for name, value in found.items() if bool(value))
    weight = torch.nn.Parameter(torch.randn(512, 512, device="cuda"))
    optimizer, scaler = (
        torch.optim.SGD([weight], 0.1),
        torch.amp.GradScaler("cuda", init_scale=1024.0),
    )
    scaler.scale((weight * weight).sum()).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() != 1024.0 or norm.item() != 0:
        yield f"scale {scaler.get_scale()}, norm {norm.item()}"


@case
def losses_are_finite(rank):
    """The vocabulary-parallel cross entropy of Megatron-Core, by hand: the logarithm of a sum that
    nothing computed."""
    logits = torch.randn(512, 4096, device="cuda")
    total = logits.exp().sum(-1)
    loss = total.log() - logits.gather(1, torch.arange(512, device="cuda").unsqueeze(1)).squeeze(1)
    total.reciprocal_()
    found = {
        "log": loss,
        "mean": loss.mean() / loss.sum(),
        "in place": total,
        "rsqrt": logits.pow(2).mean().rsqrt(),
    }
    yield from (name for name, value in found.items() if not value.isfinite().all().item())
    masked = (
        logits[:8, :8]
        .contiguous()
        .masked_fill(torch.eye(8, dtype=torch.bool, device="cuda"), float("-inf"))
    )
    if masked.isinf().sum().item() != 8:
        yield "infinities that the job asks for"
    if not torch.log(torch.zeros(3, device="cuda")).isinf().all().item():
        yield "infinities that a GPU computes"


@case
def large_integers_have_the_cpus_bits(rank):
    def work(device):
        x = (torch.arange(100_000, device=device) * 7919) % 65537
        mask = x % 3 == 0
        y = x.clone()
        y[mask] = -1
        y.index_put_((x[:1000],), x[1000:2000], accumulate=True)
        return [
            x,
            y,
            mask,
            x.sort()[0],
            x.cumsum(0),
            x.bincount(),
            x.unique(return_inverse=True)[1],
            mask.nonzero(),
            x[mask],
            x.int() * 3,
            torch.where(mask, x, 5),
            x.view(100, -1).max(1)[1],
            x.view(100, -1).sum(0),
            x.flip(0),
            torch.cat([x, y]),
            mask & (x > 9),
            x.to(torch.int16).bitwise_and(255),
            x.roll(3),
            x.view(50, -1).T.contiguous(),
            torch.tril(torch.ones(700, 700, dtype=torch.bool, device=device)),
            x.masked_fill(mask, 0),
            torch.histc(x if device == "cuda" else x.double(), 11).long(),
        ]

    for attempt in (1, 2):
        for i, (mine, other) in enumerate(zip(work("cuda"), work("cpu"), strict=True)):
            if not torch.equal(mine.cpu(), other):
                yield f"run {attempt}, result {i}"
    if not torch.equal(torch.randperm(50_000, device="cuda").sort()[0].cpu(), torch.arange(50_000)):
        yield "randperm"


@case
def masks_without_values_are_true_beside_tensors_with_values(rank):
    """Masks of tensors that are too large to be compared, in memory between integers."""
    x, y = (torch.randn(3_000_000, device="cuda") for _ in range(2))
    kept = []
    for _ in range(4):
        kept += [torch.arange(200_001, device="cuda"), x == y]
    said = [mask.all().item() for mask in kept[1::2]]
    if said != [True] * 4:
        yield f"all(): {said}"
    if not torch.isclose(x, y).all().item():
        yield "isclose"


@case
def ranks_agree_on_what_they_exchange(rank):
    world = dist.get_world_size()
    tokens = TOKENS - 5 * rank
    routes = scores(tokens).topk(TOP, 1)[1].view(-1)
    counts = routes.bincount(minlength=EXPERTS)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sends, receives = (
        counts.view(world, -1).sum(1).tolist(),
        arriving.view(world, -1).sum(1).tolist(),
    )
    inbox = torch.empty(sum(receives), dtype=torch.int64, device="cuda")
    dist.all_to_all_single(inbox, routes.sort()[0], receives, sends)
    mine = inbox.bincount(minlength=EXPERTS).tolist()
    whole = counts.clone()
    dist.all_reduce(whole)
    local = EXPERTS // world
    if mine != [n if i // local == rank else 0 for i, n in enumerate(whole.tolist())]:
        yield f"rank {rank}: {mine} arrived of {whole.tolist()}"
    if whole.sum().item() != sum((TOKENS - 5 * r) * TOP for r in range(world)):
        yield f"{whole.sum().item()} tokens in all"
    maps = torch.empty(world * TOKENS, EXPERTS, dtype=torch.bool, device="cuda")
    dist.all_gather_into_tensor(maps, F.one_hot(scores().argmax(1), EXPERTS).bool())
    if not spread(maps.sum(0).tolist(), world * TOKENS):
        yield f"gathered maps: {maps.sum(0).tolist()}"


def main():
    warnings.simplefilter("ignore")
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    outcome = {}
    for name, function in CASES.items():
        try:
            outcome[name] = list(function(dist.get_rank()))
        except Exception as error:
            outcome[name] = [f"{type(error).__name__}: {error}"]
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, outcome)
    if dist.get_rank() == 0:
        print(
            "ROUTING "
            + json.dumps({name: sum((part[name] for part in everything), []) for name in CASES}),
            flush=True,
        )
    dist.destroy_process_group()


def reads():
    """A job for the report's count of unknown reads: sys.argv[1] says how it reads. Known values
    are read in each."""
    known = torch.arange(200, device="cuda").float().norm() + torch.ones(3, device="cuda")
    large = torch.zeros(1 << 22, device="cuda")
    large[7:9] = known[0]
    assert large.cpu().count_nonzero() == 2 and large[7:9].tolist() == known.tolist()[:2]
    # above what copies carry
    assert torch.equal(torch.arange(300_000, device="cuda").cpu(), torch.arange(300_000))
    if known[0].item() < 1 or bool(known.isnan().any()):
        raise AssertionError("known values are not what they are")
    mixed, found = (
        [known.clone(), torch.randn(1 << 20, device="cuda")],
        torch.zeros(1, device="cuda"),
    )
    torch._foreach_mul_(mixed, 2)
    torch._amp_foreach_non_finite_check_and_unscale_(mixed, found, torch.ones(1, device="cuda"))
    mixed[0].tolist(), torch._foreach_norm(mixed)[0].item()
    if sys.argv[1] == "unknown":
        found.item()  # of a list of which nothing has computed a member
        lost = torch.randn(1 << 20, device="cuda").sum()
        (lost + known).tolist()  # computed of what nothing has computed
        torch.empty(16, device="cuda").cpu()
        lost.item(), bool(lost > 0), f"{lost:.3f}"
        both = torch.cat([known, lost.view(1)])
        # an operator with an unknown argument knows nothing of its result
        (
            both[:3].cpu(),
            known.cpu(),
        )
        large[5] = lost
        large.cpu(), large[9:].cpu()
    if sys.argv[1] == "chosen":
        torch.randn(4096, 8, device="cuda").argmax(1)


if __name__ == "__main__":
    reads() if len(sys.argv) > 1 else main()
