"""Inputs of a task model, made from words: ids, rows of static vectors, the biLM's layers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from hf_elmo.inference.embedding import embed_layers

from .modeling import ElmoTaskModel
from .static_vectors import write_static_words

SENTENCES_PER_FILL = 1000  # of which the layers are held beside the cache


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
            The arguments of `ElmoTaskModel.forward`, those that the model reads.
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

    def with_layers(self, layers: LayerStore) -> "WordInputs":
        """Return the same, but with the biLM's layers from elsewhere."""
        other = copy(self)
        other.layers = layers
        return other

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
            write_static_words(folder, self._words)
