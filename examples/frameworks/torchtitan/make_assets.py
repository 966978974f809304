"""Why it exists: TorchTitan needs a tokenizer folder and a dataset, which are usually downloaded.
This script makes small ones.

    python examples/frameworks/torchtitan/make_assets.py assets

writes assets/tokenizer/{tokenizer.json,tokenizer_config.json} (byte-level BPE, below the 2048
entries of TorchTitan's debug models) and assets/c4_test/data.jsonl (rows with a "text", as C4 has).
The same seed makes the same files. The dataset is loaded once, so that it lies in the cache of `datasets`: else a
rank of the first job prepares it, and that rank's host has other work than in every later job.
"""

import argparse
import json
import random
from pathlib import Path

from datasets import disable_progress_bars, load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}


def documents(count: int, seed: int) -> list[str]:
    """Texts of 50 to 600 words from an invented vocabulary; frequent words come up often, as in a
    language."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(5000)]
    weights = [1 / (place + 1) for place in range(len(words))]
    return [
        " ".join(draw.choices(words, weights, k=draw.randint(50, 600))) + "." for _ in range(count)
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument(
        "--documents", type=int, default=2000, help="rows of the dataset (about 600 tokens each)"
    )
    parser.add_argument("--vocabulary", type=int, default=2000, help="entries of the tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    texts = documents(options.documents, options.seed)
    dataset = options.folder / "c4_test"
    dataset.mkdir(parents=True, exist_ok=True)
    with open(dataset / "data.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    disable_progress_bars()
    load_dataset(str(dataset), split="train")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=options.vocabulary,
            special_tokens=list(SPECIAL.values()),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    folder = options.folder / "tokenizer"
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**SPECIAL, "model_max_length": 131072}, indent=2) + "\n"
    )
    print(f"{dataset}: {len(texts)} rows; {folder}: {tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
