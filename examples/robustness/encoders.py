"""Frozen encoders of words: a biLM over characters, pieces or words, and static vectors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import typer
from gensim.models import FastText, KeyedVectors, Word2Vec
from tokenizers import Tokenizer

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.inference.embedding import embed
from hf_elmo.language_model.vocabulary import PIECES_NAME, count_words
from hf_elmo.text.text_reader import read_files

Vectors = npt.NDArray[Any]
# Maps sentences to their word vectors, shape `(words, width)`.
Encoder = Callable[[Iterable[Sequence[str]]], Iterator[Vectors]]
# Vector of a word: the vector of its first piece or last piece, or the mean of all pieces.
Choice = Literal["first", "last", "mean"]
CHOICES: tuple[Choice, ...] = ("first", "last", "mean")
STATIC_NAME = "vectors.kv"


def load_encoder(folder: Path, choice: Choice = "first") -> Encoder:
    """Load a biLM that `pretrain` has written, or the static vectors of `main`."""
    if (folder / STATIC_NAME).exists():
        table = KeyedVectors.load(str(folder / STATIC_NAME))
        return lambda sentences: (_look_up(table, words) for words in sentences)
    model, tokenizer = ElmoModel.from_pretrained(folder), ElmoTokenizer.from_pretrained(folder)
    path = folder / PIECES_NAME
    pieces = Tokenizer.from_file(str(path)) if path.exists() else None

    def encode(sentences: Iterable[Sequence[str]]) -> Iterator[Vectors]:
        sentences = [list(words) for words in sentences]
        if pieces is None:
            yield from _join_layers(sentences, model, tokenizer)
            return
        split = [pieces.encode(words, is_pretokenized=True) for words in sentences]
        rows = _join_layers([one.tokens for one in split], model, tokenizer)
        for words, one, vectors in zip(sentences, split, rows, strict=True):
            yield join_pieces(vectors, one.word_ids, len(words), choice)

    return encode


def count_parameters(folder: Path) -> int:
    """Count the parameters of an encoder, without a softmax."""
    if (folder / STATIC_NAME).exists():
        table = KeyedVectors.load(str(folder / STATIC_NAME))
        tables = [table.vectors_vocab, table.vectors_ngrams] if _is_fasttext(table) else [table]
        return sum(np.asarray(getattr(x, "vectors", x)).size for x in tables)
    return int(ElmoModel.from_pretrained(folder).num_parameters())


def join_pieces(
    vectors: Vectors, word_ids: Sequence[int], num_words: int, choice: Choice
) -> Vectors:
    """Make a vector for each word from the vectors of its pieces, shape `(words, width)`."""
    of_word = np.array(word_ids, np.int64)
    last = np.searchsorted(of_word, np.arange(num_words), side="right") - 1
    first = np.searchsorted(of_word, np.arange(num_words), side="left")
    if choice != "mean":
        return vectors[first if choice == "first" else last]
    sums = np.cumsum(np.pad(vectors.astype(np.float64), [(1, 0), (0, 0)]), axis=0)
    return (sums[last + 1] - sums[first]) / (last + 1 - first)[:, None]


def _join_layers(
    sentences: list[list[str]], model: ElmoModel, tokenizer: ElmoTokenizer
) -> Iterator[Vectors]:
    for layers in embed(sentences, model, tokenizer, layers="all"):
        yield np.concatenate(list(layers), axis=-1)  # (words, layers * width)


def _is_fasttext(table: Any) -> bool:
    return hasattr(table, "vectors_ngrams")


def _look_up(table: Any, words: Sequence[str]) -> Vectors:
    """Look up words; an unknown word is the mean of its parts, or zero without parts."""
    has_parts = _is_fasttext(table)
    nothing = np.zeros(table.vector_size, np.float32)
    rows = [table[word] if has_parts or word in table else nothing for word in words]
    return np.stack(rows)


def main(
    train: Annotated[Path, typer.Argument(help="Text file: one tokenised sentence per line.")],
    output: Annotated[Path, typer.Argument(help="Folder for the vectors.")],
    kind: Annotated[Literal["word2vec", "fasttext"], typer.Option()] = "word2vec",
    size: Annotated[int, typer.Option(help="Width of a vector.")] = 128,
    rows: Annotated[int, typer.Option(help="Rows of the tables of words and parts.")] = 27_500,
    parts: Annotated[
        int, typer.Option(help="Part of --rows that is for parts of words (fasttext).")
    ] = 10_000,
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train static vectors (skip-gram) with a given number of parameters."""
    sentences = list(read_files([train])(None))
    options: dict[str, Any] = {"vector_size": size, "sg": 1, "seed": seed, "workers": 1}
    if kind == "word2vec":
        model = Word2Vec(min_count=1, **options)
    else:
        model = FastText(min_count=1, bucket=parts, **options)
        rows -= parts
    counts = count_words(sentences)
    model.build_vocab_from_freq(dict(counts.most_common(rows)), corpus_count=len(sentences))
    total = counts.total()
    model.train(sentences, total_examples=len(sentences), total_words=total, epochs=epochs)
    output.mkdir(parents=True, exist_ok=True)
    model.wv.save(str(output / STATIC_NAME))


if __name__ == "__main__":
    typer.run(main)
