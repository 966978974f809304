"""A transformers.Trainer over FSDP2 that also times itself with CUDA events, to be compared with
what Trainer logs."""

import json
import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, LENGTH, STEPS = 512, 64, 4


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(LENGTH) * (index + 3)) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


class Events(TrainerCallback):
    """CUDA events where training begins and after its last step, both inside what Trainer calls
    train_runtime."""

    def __init__(self):
        self.begin, self.end = (
            torch.cuda.Event(enable_timing=True),
            torch.cuda.Event(enable_timing=True),
        )

    def on_train_begin(self, args, state, control, **_):
        torch.cuda.synchronize()
        self.begin.record()

    def on_step_end(self, args, state, control, **_):
        if state.global_step == STEPS:
            self.end.record()
            self.end.synchronize()


def main():
    training = TrainingArguments(
        sys.argv[1],
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        bf16=True,
        gradient_checkpointing=False,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        fsdp=True,
        fsdp_config={"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    )
    events = Events()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
    )
    with training.device:
        model = LlamaForCausalLM(config)
    trainer = Trainer(model=model, args=training, train_dataset=Tokens(), callbacks=[events])
    metrics = trainer.train().metrics
    if os.environ["RANK"] == "0":
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        sys.stdout.write(
            "TRAINER "
            + json.dumps(
                {
                    "metrics": metrics,
                    "logs": logs,
                    "events_s": events.begin.elapsed_time(events.end) / 1e3,
                }
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
