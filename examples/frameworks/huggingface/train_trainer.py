"""An ordinary transformers.Trainer script: a causal language model made from a config object, on
random tokens, no download.

TrainingArguments on the command line decide everything, so each back end is a matter of options
(ARGS: --output_dir out --bf16 --max_steps 5):

    phantora-ns torchrun --nproc-per-node 8 train_trainer.py ARGS
    phantora-ns torchrun --nproc-per-node 8 train_trainer.py ARGS \
        --fsdp --fsdp_config configs/fsdp2.json
    phantora-ns torchrun --nproc-per-node 8 train_trainer.py ARGS --deepspeed configs/zero3.json
    phantora-ns --gpus-per-node 8 accelerate launch \
        --config_file configs/accelerate_fsdp2.yaml train_trainer.py ARGS
"""

from dataclasses import dataclass, field

import torch
from transformers import (
    AutoModelForCausalLM,
    HfArgumentParser,
    LlamaConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    """Shape of the model and of its synthetic data."""

    model: str = field(default="llama", metadata={"choices": ["llama", "qwen3", "qwen3-moe"]})
    vocab_size: int = 32000
    hidden_size: int = 2048
    layers: int = 16
    heads: int = 16
    kv_heads: int = 8
    intermediate_size: int = 8192
    experts: int = 8
    experts_per_token: int = 2
    sequence_length: int = 2048
    attention: str = "sdpa"


class RandomTokens(torch.utils.data.Dataset):
    """Sequences of random tokens, the same for the same index."""

    def __init__(self, count, length, vocab_size):
        self.count, self.length, self.vocab_size = count, length, vocab_size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.randint(
            self.vocab_size, (self.length,), generator=torch.Generator().manual_seed(index)
        )
        return {"input_ids": tokens, "labels": tokens}


def make_config(arguments):
    """The config object of the chosen architecture."""
    shape = dict(
        vocab_size=arguments.vocab_size,
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.kv_heads,
        intermediate_size=arguments.intermediate_size,
        max_position_embeddings=arguments.sequence_length,
        attn_implementation=arguments.attention,
    )
    if arguments.model == "llama":
        return LlamaConfig(**shape)
    shape["head_dim"] = arguments.hidden_size // arguments.heads
    if arguments.model == "qwen3":
        return Qwen3Config(**shape)
    return Qwen3MoeConfig(
        **shape,
        moe_intermediate_size=arguments.intermediate_size,
        num_experts=arguments.experts,
        num_experts_per_tok=arguments.experts_per_token,
        output_router_logits=True,
    )


def main():
    """Trains, and resumes from a checkpoint if told to."""
    arguments, training = HfArgumentParser(
        (ModelArguments, TrainingArguments)
    ).parse_args_into_dataclasses()
    set_seed(training.seed)
    with training.device:  # created on the GPU: the host of each rank holds no copy
        model = AutoModelForCausalLM.from_config(make_config(arguments), dtype=torch.float32)
    examples = (
        training.max_steps
        * training.train_batch_size
        * training.gradient_accumulation_steps
        * training.world_size
    )
    dataset = RandomTokens(examples, arguments.sequence_length, arguments.vocab_size)
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=dataset,
        eval_dataset=RandomTokens(
            2 * training.world_size, arguments.sequence_length, arguments.vocab_size
        ),
    )
    result = trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.log_metrics("train", result.metrics)
    if torch.distributed.get_rank() == 0:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
