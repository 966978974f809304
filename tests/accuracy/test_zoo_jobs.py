"""Why it exists: accuracy is honest only on jobs that nothing was fitted to. A calibration job of bench/zoo that has
matrix products of an evaluation job would put that job's own times into the database.

The products are counted from the models' sizes, without running them: a linear layer has tokens, inputs and outputs."""

import argparse
import tomllib
from pathlib import Path

import pytest

from bench.zoo import texts

JOBS = tomllib.loads((Path(texts.__file__).parent / "zoo.toml").read_text())["job"]
LAYERS = {
    "width": ("hidden_size", "n_embd", "d_model"),
    "inner": ("intermediate_size", "ffn_dim", "d_ff"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
}
TYPES = {"bf16": "bf16", "autocast-bf16": "bf16", "autocast-fp16": "fp16"}


def flags(job):
    parser = argparse.ArgumentParser()
    for name in ("--model", "--optimizer", "--layout", "--precision"):
        parser.add_argument(name, default="autocast-bf16")
    for name in ("--batch", "--size"):
        parser.add_argument(name, type=int)
    return parser.parse_known_args(job["flags"].split())[0]


def products(options):
    """The linear layers of a text model, each as number type, tokens and the two widths of its weights. Its products of
    the backward pass have the same three sizes."""
    sizes = texts.TEXT[options.model][2]

    def of(what, otherwise=None):
        return next((sizes[key] for key in LAYERS[what] if key in sizes), otherwise)

    width = of("width")
    inner = of("inner", 4 * width)
    head = sizes.get("head_dim", width // of("heads"))
    queries, keys = (
        head * count for count in (of("heads"), sizes.get("num_key_value_heads", of("heads")))
    )
    fused = {
        "GPT2Config": (3 * width,),
        "GPTNeoXConfig": (3 * width,),
        "Phi3Config": (queries + 2 * keys, 2 * inner),
    }
    outputs = {queries, keys, inner, *fused.get(texts.TEXT[options.model][0], ())}
    tokens, numbers = options.batch * options.size, TYPES.get(options.precision, options.precision)
    return {(numbers, tokens, frozenset((width, other))) for other in outputs}


def of_set(name):
    chosen = [job for job in JOBS if job["set"] == name]
    return {
        job["name"]: products(options)
        for job in chosen
        if (options := flags(job)).model in texts.TEXT
    }


@pytest.mark.parametrize("name", of_set("evaluation"))
def test_no_calibration_job_multiplies_what_an_evaluation_job_does(name):
    judged = of_set("evaluation")[name]
    shared = {other: judged & theirs for other, theirs in of_set("calibration").items()}
    assert {other: common for other, common in shared.items() if common} == {}


def test_no_model_is_in_both_sets():
    models = [
        {flags(job).model for job in JOBS if job["set"] == name}
        for name in ("calibration", "evaluation")
    ]
    assert models[0].isdisjoint(models[1])


def test_two_jobs_of_equal_width_and_tokens_share_products():
    """What had happened: OPT and Phi of one width, on the same number of tokens."""
    phi = next(job for job in JOBS if job["name"] == "zoo-phi-2")
    opt = {"flags": "--model opt-2.7b-12 --batch 4 --size 1024"}
    assert products(flags(phi)) & products(flags(opt))
