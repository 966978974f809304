"""Trains a GPT with Megatron-Core on its mock data set: an ordinary training script over
Megatron-Core's public API.

    torchrun --nproc-per-node 8 examples/frameworks/megatron/train_gpt.py \
        --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \
        --num-layers-per-virtual-pipeline-stage 2 --use-distributed-optimizer

Why it exists: the megatron-core package has no pretrain_gpt.py. This script stands in for a user's
own. Flags have Megatron-LM's names. Nothing in it knows about the simulator.
"""

import argparse
import math
import os
import time
from functools import partial

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.num_microbatches_calculator import (
    get_num_microbatches,
    init_num_microbatches_calculator,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tokenizers import MegatronTokenizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.moe_utils import (
    clear_aux_losses_tracker,
    reduce_aux_losses_tracker_across_ranks,
)
from megatron.core.utils import get_batch_on_this_cp_rank
from torch.utils.data import DataLoader, DistributedSampler

KEYS = ["tokens", "labels", "loss_mask", "position_ids"]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_argument_group("model")
    model.add_argument("--num-layers", type=int, default=8)
    model.add_argument("--hidden-size", type=int, default=1024)
    model.add_argument("--ffn-hidden-size", type=int)
    model.add_argument("--num-attention-heads", type=int, default=16)
    model.add_argument("--num-query-groups", type=int)
    model.add_argument("--seq-length", type=int, default=1024)
    model.add_argument("--vocab-size", type=int, default=32000)
    model.add_argument(
        "--swiglu", action="store_true", help="and RMSNorm, no biases, rotary positions: a Llama"
    )
    model.add_argument(
        "--transformer-impl", choices=["local", "transformer_engine"], default="local"
    )
    model.add_argument("--fp8-format", choices=["e4m3", "hybrid"], help="needs Transformer Engine")
    model.add_argument(
        "--fp8-recipe", choices=["delayed", "tensorwise", "blockwise"], default="delayed"
    )
    model.add_argument(
        "--no-fusion",
        action="store_true",
        help="none of the fusions that Megatron-Core leaves to torch.compile",
    )
    model.add_argument(
        "--masked-softmax-fusion", action="store_true", help="needs kernels from NVIDIA's apex"
    )
    experts = parser.add_argument_group("mixture of experts")
    experts.add_argument("--num-experts", type=int)
    experts.add_argument("--moe-router-topk", type=int, default=2)
    experts.add_argument(
        "--moe-token-dispatcher-type", choices=["allgather", "alltoall"], default="alltoall"
    )
    experts.add_argument("--moe-router-load-balancing-type", default="aux_loss")
    experts.add_argument("--moe-aux-loss-coeff", type=float, default=1e-2)
    experts.add_argument("--moe-router-force-load-balancing", action="store_true")
    experts.add_argument("--moe-expert-capacity-factor", type=float)
    experts.add_argument("--moe-pad-expert-input-to-capacity", action="store_true")
    experts.add_argument(
        "--moe-grouped-gemm", action="store_true", help="needs grouped_gemm, or Transformer Engine"
    )
    parallel = parser.add_argument_group("parallelism")
    parallel.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parallel.add_argument("--sequence-parallel", action="store_true")
    parallel.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parallel.add_argument(
        "--num-layers-per-virtual-pipeline-stage", type=int, help="interleaved schedule"
    )
    parallel.add_argument(
        "--context-parallel-size", type=int, default=1, help="needs Transformer Engine"
    )
    parallel.add_argument("--expert-model-parallel-size", type=int, default=1)
    parallel.add_argument("--expert-tensor-parallel-size", type=int)
    parallel.add_argument("--use-distributed-optimizer", action="store_true")
    parallel.add_argument("--overlap-grad-reduce", action="store_true")
    parallel.add_argument("--overlap-param-gather", action="store_true")
    train = parser.add_argument_group("training")
    train.add_argument("--micro-batch-size", type=int, default=1)
    train.add_argument("--global-batch-size", type=int, default=16)
    train.add_argument("--train-iters", type=int, default=5)
    train.add_argument("--lr", type=float, default=3e-4)
    train.add_argument("--clip-grad", type=float, default=1.0)
    train.add_argument("--precision", choices=["bf16", "fp16", "fp32"], default="bf16")
    train.add_argument("--recompute-granularity", choices=["full", "selective"])
    train.add_argument("--recompute-method", choices=["uniform", "block"], default="uniform")
    train.add_argument("--recompute-num-layers", type=int, default=1)
    train.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


def transformer_config(args, layers_per_stage):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.precision]
    full = args.recompute_granularity == "full"
    llama = dict(
        gated_linear_unit=True,
        activation_func=F.silu,
        normalization="RMSNorm",
        add_bias_linear=False,
    )
    fusions = not args.no_fusion
    layers_per_chunk = args.num_layers_per_virtual_pipeline_stage
    virtual = layers_per_stage // layers_per_chunk if layers_per_chunk else None
    moe = (
        dict(
            num_moe_experts=args.num_experts,
            moe_router_topk=args.moe_router_topk,
            moe_aux_loss_coeff=args.moe_aux_loss_coeff,
            moe_router_load_balancing_type=args.moe_router_load_balancing_type,
            moe_grouped_gemm=args.moe_grouped_gemm,
            moe_token_dispatcher_type=args.moe_token_dispatcher_type,
            add_bias_linear=False,
            moe_router_force_load_balancing=args.moe_router_force_load_balancing,
            moe_expert_capacity_factor=args.moe_expert_capacity_factor,
            moe_pad_expert_input_to_capacity=args.moe_pad_expert_input_to_capacity,
        )
        if args.num_experts
        else {}
    )
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        ffn_hidden_size=args.ffn_hidden_size,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        sequence_parallel=args.sequence_parallel,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=virtual,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        autocast_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        bias_activation_fusion=fusions,
        bias_dropout_fusion=fusions,
        cross_entropy_loss_fusion=fusions,
        masked_softmax_fusion=args.masked_softmax_fusion,
        recompute_granularity=args.recompute_granularity,
        recompute_method=args.recompute_method if full else None,
        recompute_num_layers=args.recompute_num_layers if full else None,
        fp8=args.fp8_format,
        fp8_recipe=args.fp8_recipe,
        transformer_impl=args.transformer_impl,
        **{**(llama if args.swiglu else {}), **moe},
    )


class TorchNorm:
    """PyTorch's own norm, its parameters marked as Megatron-Core wants them: with sequence
    parallelism each rank has the gradient of its part of the sequence only, to be summed over the
    tensor-parallel group. (Megatron-Core's wrapper refuses that case.)"""

    def __new__(cls, config, hidden_size, eps=1e-5, **_):
        norm = (torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm)(
            hidden_size, eps=eps
        )
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def block_spec(args, config, vp_stage):
    """What the layers of one model chunk are made of."""
    te = args.transformer_impl == "transformer_engine"
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=te, normalization=config.normalization, vp_stage=vp_stage
    )
    if not te:
        block.layer_norm = TorchNorm
        for layer in block.layer_specs:
            layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = TorchNorm
    return block


def build_model(args, config):
    """This rank's model chunks (more than one with virtual pipeline stages), wrapped for data
    parallelism."""
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=args.use_distributed_optimizer,
        overlap_grad_reduce=args.overlap_grad_reduce,
        overlap_param_gather=args.overlap_param_gather,
        grad_reduce_in_fp32=True,
        check_for_nan_in_grad=True,
    )
    # each rank's part of the vocabulary is a multiple of 128, as in Megatron-LM
    unit = 128 * config.tensor_model_parallel_size
    chunks = []
    for stage in range(config.virtual_pipeline_model_parallel_size or 1):
        vp_stage = stage if config.virtual_pipeline_model_parallel_size else None
        model = GPTModel(
            config=config,
            transformer_layer_spec=block_spec(args, config, vp_stage),
            vocab_size=math.ceil(args.vocab_size / unit) * unit,
            max_sequence_length=args.seq_length,
            pre_process=parallel_state.is_pipeline_first_stage(
                ignore_virtual=False, vp_stage=vp_stage
            ),
            post_process=parallel_state.is_pipeline_last_stage(
                ignore_virtual=False, vp_stage=vp_stage
            ),
            position_embedding_type="rope" if args.swiglu else "learned_absolute",
            share_embeddings_and_output_weights=not args.swiglu,
            vp_stage=vp_stage,
        )
        model.model_type = ModelType.encoder_or_decoder
        model.cuda(torch.cuda.current_device())
        if config.fp16 or config.bf16:
            model = Float16Module(config, model)
        # Later chunks have their gradients ready first: only the first overlaps with anything.
        chunks.append(
            DistributedDataParallel(config, ddp_config, model, disable_bucketing=stage > 0)
        )
    return chunks


def connect(config, args, model, optimizer):
    """Tells the schedule how gradients are scaled, left unreduced between micro-batches, and
    reduced at the end."""
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad_reduce:
        config.no_sync_func = (
            [chunk.no_sync for chunk in model] if len(model) > 1 else model[0].no_sync
        )
        if len(model) > 1:
            config.grad_sync_func = [chunk.start_grad_sync for chunk in model]
    if args.overlap_param_gather and len(model) > 1:
        config.param_sync_func = [chunk.start_param_sync for chunk in model]


def data_iterators(args, chunks):
    """One iterator per model chunk over the same samples; within a tensor-parallel group only rank
    0 reads."""
    tokenizer = MegatronTokenizer.from_pretrained(
        metadata_path={"library": "null"}, vocab_size=args.vocab_size - 1
    )
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=tokenizer,
        mid_level_dataset_surplus=0.005,
    )
    samples = args.train_iters * args.global_batch_size
    dataset = BlendedMegatronDatasetBuilder(
        MockGPTDataset,
        [samples, None, None],
        lambda: parallel_state.get_tensor_model_parallel_rank() == 0,
        config,
    ).build()[0]
    if dataset is None:
        return [None] * chunks
    sampler = DistributedSampler(
        dataset,
        parallel_state.get_data_parallel_world_size(),
        parallel_state.get_data_parallel_rank(),
        seed=args.seed,
    )
    return [
        iter(DataLoader(dataset, args.micro_batch_size, sampler=sampler, pin_memory=True))
        for _ in range(chunks)
    ]


def next_batch(iterator):
    batch = next(iterator) if iterator is not None else None
    whole = tensor_parallel.broadcast_data(["tokens", "labels", "position_ids"], batch, torch.int64)
    whole |= tensor_parallel.broadcast_data(["loss_mask"], batch, torch.float32)
    return get_batch_on_this_cp_rank(whole)


def loss_of(loss_mask, output):
    mask = loss_mask.view(-1)
    total = torch.stack([torch.sum(output.view(-1).float() * mask), mask.sum()])
    if parallel_state.get_context_parallel_world_size() > 1:
        torch.distributed.all_reduce(total, group=parallel_state.get_context_parallel_group())
    loss = total[0] / total[1]
    averaged = loss.detach().clone()
    torch.distributed.all_reduce(averaged, group=parallel_state.get_data_parallel_group())
    return loss, {"lm loss": averaged / parallel_state.get_data_parallel_world_size()}


def forward_step(iterator, model):
    batch = next_batch(iterator)
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(loss_of, batch["loss_mask"])


def model_flops(args, config):
    """Floating-point operations of one iteration's forward and backward, recomputation not counted:
    6 per token and weight of a matrix product (active experts only), 12 per token, layer, attention
    channel and key (Narayanan et al. 2021, 5.1)."""
    channels = config.kv_channels * config.num_attention_heads
    attention = config.hidden_size * (
        2 * channels + 2 * config.kv_channels * config.num_query_groups
    )
    mlp = config.hidden_size * config.ffn_hidden_size * (3 if config.gated_linear_unit else 2)
    if args.num_experts:
        mlp = mlp * config.moe_router_topk + config.hidden_size * args.num_experts
    per_token = 6 * (config.num_layers * (attention + mlp) + config.hidden_size * args.vocab_size)
    per_token += 12 * config.num_layers * channels * args.seq_length
    return per_token * args.global_batch_size * args.seq_length


def train(args):
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    virtual = args.num_layers_per_virtual_pipeline_stage
    layers_per_stage = args.num_layers // args.pipeline_model_parallel_size
    config = transformer_config(args, layers_per_stage)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=layers_per_stage // virtual if virtual else None,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)
    init_num_microbatches_calculator(
        rank,
        None,
        args.global_batch_size,
        args.micro_batch_size,
        parallel_state.get_data_parallel_world_size(),
    )
    model = build_model(args, config)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=args.lr,
            min_lr=args.lr / 10,
            weight_decay=0.1,
            clip_grad=args.clip_grad,
            bf16=config.bf16,
            fp16=config.fp16,
            params_dtype=config.params_dtype,
            initial_loss_scale=2.0**16,
            use_distributed_optimizer=args.use_distributed_optimizer,
            overlap_param_gather=args.overlap_param_gather,
        ),
        model,
    )
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=args.lr,
        min_lr=args.lr / 10,
        lr_warmup_steps=args.global_batch_size,
        lr_decay_steps=max(args.train_iters, 2) * args.global_batch_size,
        lr_decay_style="cosine",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    connect(config, args, model, optimizer)
    iterators = data_iterators(args, len(model))
    if rank == 0:
        parameters = sum(parameter.numel() for chunk in model for parameter in chunk.parameters())
        print(
            f" world size {world}, data parallel {parallel_state.get_data_parallel_world_size()}, "
            f"{get_num_microbatches()} micro-batches, {len(model)} model chunks per rank, "
            f"parameters on rank 0: {parameters:,}",
            flush=True,
        )
    step = get_forward_backward_func()
    for chunk in model:
        chunk.train()
    torch.cuda.synchronize()
    for iteration in range(1, args.train_iters + 1):
        torch.distributed.barrier()
        start = time.perf_counter()
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = step(
            forward_step_func=forward_step,
            data_iterator=iterators if len(model) > 1 else iterators[0],
            model=model,
            num_microbatches=get_num_microbatches(),
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            forward_only=False,
        )
        updated, grad_norm, _ = optimizer.step()
        if updated:
            scheduler.step(increment=args.global_batch_size)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if args.num_experts:
            reduce_aux_losses_tracker_across_ranks()
            clear_aux_losses_tracker()
        peak = torch.tensor([torch.cuda.max_memory_allocated()], device="cuda")
        torch.distributed.all_reduce(peak, op=torch.distributed.ReduceOp.MAX)
        if rank == world - 1:  # in the last pipeline stage, where the losses are
            loss = sum(micro["lm loss"].item() for micro in losses) / len(losses)
            print(
                f" iteration {iteration:4d}/{args.train_iters:4d} | elapsed time per iteration "
                f"(ms): {seconds * 1e3:.1f} | "
                f"tokens/s: {args.global_batch_size * args.seq_length / seconds:.0f} | throughput "
                "per GPU (TFLOP/s/GPU): "
                f"{model_flops(args, config) / seconds / world / 1e12:.1f} | "
                f"lm loss: {loss:.6E} | loss scale: {optimizer.get_loss_scale().item():.1f} | grad "
                f"norm: {grad_norm:.3f} | "
                f"skipped: {int(not updated)} | peak memory (MiB): {peak.item() / 2**20:.0f}",
                flush=True,
            )


def main():
    args = parse()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    train(args)
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
