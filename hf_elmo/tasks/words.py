"""From words to what a task model reads: ids, static vectors' rows, the biLM's layers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from hf_elmo.inference.embedding import embed_layers
from hf_elmo.text.text_reader import decode_lines, decompress

from .modeling import ElmoTaskModel

STATIC_WORDS_NAME = "static_words.txt"
FLOAT_BYTES = 4
MAX_WIDTH = 2**16  # of static vectors: a damaged file may claim any
SENTENCES_PER_FILL = 1000  # of which the layers are held beside the cache


class StaticVectors(NamedTuple):
    """Vectors of words without their context.

    Attributes:
        words: The words.
        table: Their vectors, shape `(words, width)`.
    """

    words: list[str]
    table: Tensor


def read_vectors(path: Path, *, max_words: int | None = None) -> StaticVectors:
    """Read vectors in word2vec's formats, as gensim, GloVe, fastText and floret write them.

    Args:
        path: Text, a word and its numbers a line; or binary, if its name says `.bin`. A first line
            of two numbers, the words' and the vectors', may lead a text and leads a binary file.
            Either may be compressed, as its suffix says: `.gz .bz2 .xz .zst`.
        max_words: Words to read at most, from the top; None = all.

    Returns:
        The vectors.

    Raises:
        ValueError: If a line or a record is not what it should be.
    """
    with path.open("rb") as packed:
        file = decompress(packed, path.name)
        rows = _read_binary(file, path) if ".bin" in path.suffixes else _read_text(file, path)
        words: list[str] = []
        vectors: list[npt.NDArray[np.float32]] = []
        for word, vector in rows:
            if len(words) == max_words:
                break
            words.append(word)
            vectors.append(vector)
    if not words:
        raise ValueError(f"{path}: expected vectors of words, found none.")
    return StaticVectors(words, torch.from_numpy(np.stack(vectors)))


def scale_vectors(table: Tensor) -> Tensor:
    """Scale static vectors so that their numbers have a mean square of 1, as ELMo's have about.

    Programs make vectors of very different length, and a task model that is trained for a short
    time does not make up for it.

    Args:
        table: Shape `(words, width)`.

    Returns:
        The same shape.
    """
    return table / table.square().mean().sqrt().clamp(min=torch.finfo(table.dtype).tiny)


def _read_text(file: BinaryIO, path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    width = None
    for number, line in enumerate(decode_lines(file, str(path)), start=1):
        word, *numbers = line.rstrip().split(" ")
        if number == 1 and len(numbers) == 1:
            continue  # how many, how wide
        width = width or len(numbers)
        word, *numbers = line.rstrip().rsplit(" ", width)  # a word may have spaces, as in GloVe
        try:
            vector = np.array(numbers, dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if len(vector) != width or not width:
            raise ValueError(
                f"{path}, line {number}: expected a word and {width or 'its'} numbers, found "
                f"{line[:60].rstrip()!r}."
            )
        yield word, vector


def _read_binary(file: BinaryIO, path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    header = file.readline()
    try:
        count, width = map(int, header.split())
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a first line of two numbers, found {header[:60]!r}."
        ) from error
    if not 0 < width <= MAX_WIDTH:
        raise ValueError(f"{path}: expected vectors of width 1 to {MAX_WIDTH}, found {width}.")
    for number in range(count):
        word = bytearray()
        while (letter := file.read(1)) not in (b" ", b""):
            word += letter
        record = file.read(FLOAT_BYTES * width)
        if len(record) < FLOAT_BYTES * width:
            raise ValueError(f"{path}: expected {count} vectors, found {number} and an end.")
        yield (
            word.decode("utf-8", "replace").lstrip("\n"),
            np.frombuffer(record, dtype="<f4").copy(),
        )


class LayerStore(Protocol):
    """Where layers of sentences come from, such as a `LayerCache`."""

    def fetch(
        self,
        sentences: Sequence[Sequence[str]],
        compute: Callable[[list[Sequence[str]]], Iterator[Tensor]],
    ) -> Iterator[Tensor]:
        """Return the layers of sentences, computing those that are not there."""


class WordInputs:
    """Make what a task model reads of sentences.

    Args:
        model: The model; of its biLM layers are computed, if there is a cache.
        tokenizer: The biLM's.
        static_words: The words of the model's static vectors, from row 1 on.
        cache: Keeps layers of a frozen biLM, so that an epoch costs what the task model costs;
            None = the model runs its biLM.

    Attributes:
        tokenizer: The biLM's.
        layers: Where layers come from: the cache, or None.
    """

    def __init__(
        self,
        model: ElmoTaskModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        static_words: Sequence[str] = (),
        cache: LayerStore | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._words = list(static_words)
        self._rows = {word: row for row, word in enumerate(static_words, start=1)}
        self.layers: LayerStore | None = (
            cache if model.config.num_mixes and model.is_bilm_frozen else None
        )

    def __call__(self, sentences: Sequence[Sequence[str]]) -> dict[str, Tensor]:
        """Turn the words of several sentences into tensors.

        Args:
            sentences: Words of each.

        Returns:
            The arguments of `ElmoTaskModel.read_words`, those that the model reads.
        """
        config = self.model.config
        lengths = [len(words) for words in sentences]
        mask = torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]
        inputs = {"attention_mask": mask.long()}
        if config.static_size:
            rows = [torch.tensor([self._find_row(w) for w in words]).long() for words in sentences]
            inputs["static_ids"] = pad_sequence(rows, batch_first=True)
        if config.char_size or (config.num_mixes and self.layers is None):
            inputs |= self._tokenize(sentences)
        if self.layers is not None:
            found = list(self.layers.fetch(sentences, self._compute))
            count, _, width = found[0].shape
            # Layer by layer in memory, as they are mixed.
            layers = found[0].new_zeros(count, *mask.shape, width)
            for row, x in enumerate(found):
                layers[:, row, : x.shape[1]] = x
            inputs["elmo_layers"] = layers.transpose(0, 1)
        return inputs

    def fill(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compute the layers of sentences ahead, so that the order of batches changes nothing."""
        if self.layers is None:
            return
        with tqdm(total=len(sentences), desc="biLM", unit="sentence", disable=None) as bar:
            for start in range(0, len(sentences), SENTENCES_PER_FILL):
                chunk = sentences[start : start + SENTENCES_PER_FILL]
                for _ in self.layers.fetch(chunk, self._compute):
                    bar.update()

    def _tokenize(self, sentences: Sequence[Sequence[str]]) -> dict[str, Tensor]:
        encoded = self.tokenizer(
            [list(words) for words in sentences],
            is_split_into_words=True,
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        return {name: encoded[name] for name in ("input_ids", "word_input_ids") if name in encoded}

    def _find_row(self, word: str) -> int:
        return self._rows.get(word) or self._rows.get(word.lower(), 0)

    def _compute(self, sentences: Iterable[Sequence[str]]) -> Iterator[Tensor]:
        with torch.no_grad():
            for layers in embed_layers(sentences, self.model.elmo, self.tokenizer):
                yield layers.cpu()

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the static vectors' words beside a model."""
        self.tokenizer.save_pretrained(folder)
        if self._words:
            text = "".join(f"{word}\n" for word in self._words)
            (folder / STATIC_WORDS_NAME).write_text(text, encoding="utf-8", newline="\n")


def read_static_words(path: Path) -> list[str]:
    """Read the words of static vectors, as `WordInputs.save` writes them."""
    return path.read_bytes().decode("utf-8").split("\n")[:-1]
