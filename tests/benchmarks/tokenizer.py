"""How many words a second ElmoTokenizer encodes, beside a plain loop over characters."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from hf_elmo import ElmoTokenizer

NUM_CELLS = 50
NUM_WORD_TYPES = 50_000
WORDS_PER_SENTENCE = 25

Batch = list[list[str]]


def main(
    text: Annotated[
        Path | None, typer.Option(help="A sentence a line, words between spaces; else random.")
    ] = None,
    num_batches: Annotated[int, typer.Option(help="Batches to encode.")] = 100,
    batch_size: Annotated[int, typer.Option(help="Sentences in a batch.")] = 32,
    repeats: Annotated[int, typer.Option(help="Runs of each; the fastest counts.")] = 3,
) -> None:
    """Encode batches into padded PyTorch tensors on one core; print a table.

    The plain loop is what ELMo code usually does: a list for each word, filled character by
    character, and one tensor of the padded lists.
    """
    torch.set_num_threads(1)
    sentences = make_sentences(num_batches * batch_size) if text is None else read_sentences(text)
    starts = range(0, len(sentences), batch_size)
    batches = [sentences[start : start + batch_size] for start in starts][:num_batches]
    tokenizer = ElmoTokenizer(max_characters_per_token=NUM_CELLS)

    def encode(batch: Batch) -> torch.Tensor:
        encoded = tokenizer(batch, is_split_into_words=True, padding=True, return_tensors="pt")
        ids: torch.Tensor = encoded["input_ids"]
        return ids

    if not all(torch.equal(encode(batch), encode_plainly(batch)) for batch in batches):
        raise typer.BadParameter("the tokenizer and the plain loop give different ids")
    plain = measure(encode_plainly, batches, repeats)
    fast = measure(encode, batches, repeats)
    typer.echo(f"{'encoder':<16}{'words/s':>12}{'ratio':>8}")
    typer.echo(f"{'plain loop':<16}{plain:>12,.0f}{1:>8.2f}")
    typer.echo(f"{'ElmoTokenizer':<16}{fast:>12,.0f}{fast / plain:>8.2f}")


def make_sentences(number: int) -> Batch:
    """Draw sentences of 1 to 49 words, whose frequencies fall with their ranks as in a language."""
    random = np.random.default_rng(0)
    letters = list("eeeeetttaaaooiinnssrrhhlldducmfpgwybvkxjqzé")
    lengths = np.maximum(1, random.poisson(5, NUM_WORD_TYPES))
    types = ["".join(random.choice(letters, length)) for length in lengths]
    frequencies = 1 / np.arange(1, NUM_WORD_TYPES + 1)
    sizes = random.integers(1, 2 * WORDS_PER_SENTENCE, number)
    ranks = random.choice(NUM_WORD_TYPES, sizes.sum(), p=frequencies / frequencies.sum())
    return [[types[rank] for rank in part] for part in np.split(ranks, np.cumsum(sizes)[:-1])]


def read_sentences(path: Path) -> Batch:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line.strip()]


def encode_plainly(batch: Batch) -> torch.Tensor:
    """Encode a batch character by character, shape `(batch, tokens, characters)`."""
    num_tokens = max(map(len, batch))
    rows = []
    for words in batch:
        sentence = [spell_plainly(word) for word in words]
        rows.append(sentence + [[0] * NUM_CELLS] * (num_tokens - len(sentence)))
    return torch.from_numpy(np.array(rows))  # three times as fast as torch.tensor(rows)


def spell_plainly(word: str) -> list[int]:
    row = [259]
    for byte in word.encode("utf-8", "ignore")[: NUM_CELLS - 2]:
        row.append(byte + 1)
    row.append(260)
    return row + [261] * (NUM_CELLS - len(row))


def measure(encode: Callable[[Batch], torch.Tensor], batches: list[Batch], repeats: int) -> float:
    """Time an encoder over all batches, in words a second."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for batch in batches:
            encode(batch)
        times.append(time.perf_counter() - start)
    return sum(len(words) for batch in batches for words in batch) / min(times)


if __name__ == "__main__":
    typer.run(main)
