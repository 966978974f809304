"""Runs under torchrun on 2 nodes x 2 ranks: every way in which torch spreads training, against
plain training on the CPU.

The model is small enough to have values, so after a few steps on the same data the weights must
agree.
"""

import copy
import os
import pickle
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from common import check, differs, run_checks
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
STEPS, ROWS, WIDTH = 3, 8, 16


def fresh():
    """The model before training, the same on every rank."""
    torch.manual_seed(7)
    blocks = [
        nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.GELU(),
            nn.LayerNorm(2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        for _ in range(WORLD)
    ]
    return nn.Sequential(*blocks)


def batch(step):
    """The whole batch of a step: inputs and targets."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(
        ROWS, WIDTH, generator=generator
    )


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, foreach=True)


def on_the_cpu(clip=None):
    """The weights after training on whole batches."""
    model = fresh()
    optimizer = optimizer_of(model.parameters())
    for step in range(STEPS):
        x, y = batch(step)
        F.mse_loss(model(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def train(model, optimizer=None, *, split=True, clip=None):
    """Trains on this rank's rows (or on all of them); returns the last loss."""
    optimizer = optimizer or optimizer_of(model.parameters())
    for step in range(STEPS):
        x, y = (part.chunk(WORLD)[RANK].cuda() if split else part.cuda() for part in batch(step))
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def compared(state, expected):
    """Complaints about full weights, by name."""
    for name, wanted in expected.items():
        yield from differs(name, state[name], wanted, 1e-4)


@check
def distributed_data_parallel():
    for options in (
        {},
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"bucket_cap_mb": 0.001},
    ):
        model = DistributedDataParallel(fresh().cuda(), device_ids=[LOCAL], **options)
        train(model, clip=0.5)
        yield from compared(model.module.state_dict(), on_the_cpu(clip=0.5))


@check
def distributed_data_parallel_that_was_pickled():
    """The same on the CPU is the oracle, not plain training: a static graph that is pickled after
    its first step reduces no gradient any more (https://github.com/pytorch/pytorch/issues/112277).
    """

    def trained(device, static):
        model = DistributedDataParallel(fresh().to(device), static_graph=static)
        for step in range(STEPS):
            x, y = (part.chunk(WORLD)[RANK].to(device) for part in batch(step))
            F.mse_loss(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            model.zero_grad()
            if step == 0:
                model = pickle.loads(pickle.dumps(model))
        return model.module.state_dict()

    for static in (False, True):
        yield from compared(trained("cuda", static), trained("cpu", static))


@check
def gradient_accumulation_without_synchronisation():
    model = DistributedDataParallel(fresh().cuda(), device_ids=[LOCAL])
    optimizer = optimizer_of(model.parameters())
    for step in range(STEPS):
        x, y = (part.chunk(WORLD)[RANK].cuda() for part in batch(step))
        with model.no_sync():
            F.mse_loss(model(x[:1]), y[:1]).div(2).backward()
        F.mse_loss(model(x[1:]), y[1:]).div(2).backward()
        optimizer.step()
        optimizer.zero_grad()
    yield from compared(model.module.state_dict(), on_the_cpu())


@check
def zero_redundancy_optimizer():
    model = DistributedDataParallel(fresh().cuda(), device_ids=[LOCAL])
    train(
        model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01, foreach=True)
    )
    yield from compared(model.module.state_dict(), on_the_cpu())


def full_state(model):
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in model.state_dict().items()
    }


@check
def fully_sharded():
    for shape in ((WORLD,), (2, 2)):
        for reshard in (True, False):
            mesh = init_device_mesh(
                "cuda", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :]
            )
            model = fresh().cuda()
            for block in model:
                fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(model, mesh=mesh)
            train(model, clip=0.5)
            yield from compared(full_state(model), on_the_cpu(clip=0.5))


@check
def fully_sharded_first_generation():
    model = FullyShardedDataParallel(fresh().cuda(), use_orig_params=True)
    train(model)
    with FullyShardedDataParallel.summon_full_params(model):
        state = {
            name.removeprefix("_fsdp_wrapped_module."): value.detach().clone()
            for name, value in model.named_parameters()
        }
    yield from compared(state, on_the_cpu())


@check
def tensor_parallel():
    mesh = init_device_mesh("cuda", (WORLD,))
    model = fresh().cuda()
    plan = {
        f"{block}.{layer}": style()
        for block in range(WORLD)
        for layer, style in (("0", ColwiseParallel), ("3", RowwiseParallel))
    }
    for block in model:
        block[2] = nn.Identity()  # a norm over a sharded axis needs another layout
    expected = copy.deepcopy(model).cpu()
    x, y = batch(0)
    F.mse_loss(expected(x), y).backward()
    parallelize_module(model, mesh, plan)
    loss = F.mse_loss(model(x.cuda()), y.cuda())
    loss.backward()
    yield from differs("loss", loss, F.mse_loss(expected(x), y), 1e-5)
    for (name, wanted), found in zip(expected.named_parameters(), model.parameters()):
        yield from differs(f"gradient of {name}", found.grad.full_tensor(), wanted.grad, 1e-5)


@check
def pipeline():
    whole = fresh()
    expected, (x, y) = copy.deepcopy(whole), batch(0)
    parts = F.mse_loss(expected(x), y)
    parts.backward()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        own = copy.deepcopy(whole[RANK]).cuda()
        stage = PipelineStage(own, RANK, WORLD, torch.device("cuda", LOCAL))
        run = schedule(stage, n_microbatches=4, loss_fn=F.mse_loss)
        losses = []
        if RANK == 0:
            run.step(x.cuda())
        elif RANK == WORLD - 1:
            output = run.step(target=y.cuda(), losses=losses)
            yield from differs("output", output, expected(x), 1e-4)
            yield from differs("loss", torch.stack(losses).mean(), parts, 1e-4)
        else:
            run.step()
        for (name, found), wanted in zip(own.named_parameters(), expected[RANK].parameters()):
            yield from differs(f"gradient of {name}", found.grad, wanted.grad, 1e-4)


@check
def sharded_checkpoints():
    folder = [tempfile.mkdtemp(prefix="phantora-test-") if RANK == 0 else None]
    dist.broadcast_object_list(folder, src=0)

    def sharded():
        model = fresh().cuda()
        for block in model:
            fully_shard(block)
        return fully_shard(model)

    model = sharded()
    train(model)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder[0])
    other = sharded()
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(other, state["model"])
    yield from compared(full_state(other), full_state(model))
    yield from compared(full_state(other), on_the_cpu())
    dist.barrier()
    if RANK == 0:
        for entry in os.scandir(folder[0]):
            os.unlink(entry)
        os.rmdir(folder[0])


@check
def synchronised_batch_norm():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(
        nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8))
    ).cuda()
    expected = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8))
    expected.load_state_dict(model.state_dict())
    dist.broadcast(model[0].weight.data, 0), dist.broadcast(model[0].bias.data, 0)
    expected.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    x, _ = batch(1)
    model = DistributedDataParallel(model, device_ids=[LOCAL])
    yield from differs(
        "output", model(x.chunk(WORLD)[RANK].cuda()), expected(x).chunk(WORLD)[RANK], 1e-4
    )
    yield from differs("running mean", model.module[1].running_mean, expected[1].running_mean, 1e-4)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", LOCAL))
    run_checks(only=sys.argv[1:] or None)
    dist.destroy_process_group()
