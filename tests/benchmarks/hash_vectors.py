"""Print a checksum of the bundled model's vectors, to compare two versions of the code bit by bit.

Run it on both, with the same number of threads and the same PyTorch:

    python tests/benchmarks/hash_vectors.py MODEL_FOLDER
"""

import argparse
import hashlib
from pathlib import Path

import torch

from hf_elmo import ElmoModel, ElmoTokenizer

TEXT = Path(__file__).parents[1] / "data" / "lighthouse.txt"


def hash_layers(model: ElmoModel, tokenizer: ElmoTokenizer, batch_size: int) -> str:
    """Return the SHA-256 of all layers of the text's words, run in batches of sentences."""
    sentences = [line.split() for line in TEXT.read_text(encoding="utf-8").splitlines()]
    digest = hashlib.sha256()
    for start in range(0, len(sentences), batch_size):
        batch = tokenizer(
            sentences[start : start + batch_size],
            is_split_into_words=True,
            padding=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            outputs = model(**batch, output_hidden_states=True)
        for layer in (*outputs.hidden_states, outputs.elmo):
            digest.update(layer.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """Print a line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = ElmoModel.from_pretrained(arguments.model).eval()
    tokenizer = ElmoTokenizer.from_pretrained(arguments.model)
    for batch_size in (1, 2, 8, 32, 64):
        print(f"batch {batch_size:2}: {hash_layers(model, tokenizer, batch_size)}")


if __name__ == "__main__":
    main()
