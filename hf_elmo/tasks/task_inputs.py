"""Inputs of a task model, made from words: ids, rows of static vectors, the biLM's layers."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from hf_elmo.inference.embedding import embed_layers
from hf_elmo.inference.layer_cache import LayerCache
from hf_elmo.language_model.vocabulary import count_words, write_words
from hf_elmo.onnx.support import find_problem
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .modeling import ElmoTaskModel
from .static_vectors import STATIC_WORDS_NAME, find_row

logger = logging.getLogger(__name__)

SENTENCES_PER_FILL = 1000  # whose layers are in memory, in addition to the cache

Compute: TypeAlias = Callable[[list[Sequence[str]]], Iterator[Tensor]]
# Returns the layers of sentences; calls the given function for layers that are missing.
FetchLayers: TypeAlias = Callable[[Sequence[Sequence[str]], Compute], Iterator[Tensor]]


class WordInputs:
    """Make the inputs of a task model from words.

    Args:
        model: The model. If its biLM is frozen, the biLM runs here if there is a cache or if ONNX
            Runtime can run it. Otherwise, the model runs the biLM.
        tokenizer: Tokenizer of the biLM.
        static_words: The words of the model's static vectors; the first has row 1.
        cache: Cache for the layers of a frozen biLM, whose weights must not change; None = no
            cache.

    Attributes:
        tokenizer: Tokenizer of the biLM.
    """

    def __init__(
        self,
        model: ElmoTaskModel,
        tokenizer: ElmoTokenizer,
        *,
        static_words: Sequence[str] = (),
        cache: LayerCache | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._cache = cache
        self._fetch: FetchLayers | None = None
        self._words = list(static_words)
        self._rows: dict[str, int] = {}
        for row, word in enumerate(static_words, start=1):
            self._rows.setdefault(word, row)  # the first of equal words counts, as in gensim

    def __call__(self, sentences: Sequence[Sequence[str]]) -> dict[str, Tensor]:
        """Turn the words of several sentences into tensors.

        Args:
            sentences: Words of each sentence.

        Returns:
            The arguments of `ElmoTaskModel.forward` that the model reads.
        """
        config = self.model.config
        lengths = [len(words) for words in sentences]
        mask = torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]
        inputs = {"attention_mask": mask.long()}
        if config.static_size:
            rows = [
                torch.tensor([find_row(self._rows, w) for w in words]).long() for words in sentences
            ]
            inputs["static_ids"] = pad_sequence(rows, batch_first=True)
        found: list[Tensor] = []
        fetch = self._find_fetch()
        if fetch is not None:
            found = list(fetch(sentences, self._compute))
        elif self._can_compute_ahead():
            found = list(self._compute(sentences))
        if config.char_size or (config.num_mixes and not found):
            inputs |= self._tokenize(sentences)
        if found:
            count, _, width = found[0].shape
            # Each layer is contiguous, because the mix reads layer by layer.
            layers = found[0].new_zeros(count, *mask.shape, width)
            for row, x in enumerate(found):
                layers[:, row, : x.shape[1]] = x
            inputs["elmo_layers"] = layers.transpose(0, 1)
        return inputs

    def _find_fetch(self) -> FetchLayers | None:
        """Return the function that gets layers; that of the cache if the biLM is still frozen."""
        if self._fetch is not None or self._cache is None or not self.model.config.num_mixes:
            return self._fetch
        return self._cache.fetch if self.model.is_bilm_frozen else None

    def _can_compute_ahead(self) -> bool:
        """Return whether the biLM is frozen and ONNX Runtime can compute its layers."""
        model = self.model
        has_bilm = model.config.num_mixes > 0
        return has_bilm and model.is_bilm_frozen and find_problem(model.elmo) is None

    def for_model(self, model: ElmoTaskModel) -> "WordInputs":
        """Return a `WordInputs` for a copy of the model (this object, if it has a cache)."""
        if model is self.model or self._find_fetch() is not None:
            return self
        other = copy(self)
        other.model = model
        return other

    def with_layers(self, fetch: FetchLayers) -> "WordInputs":
        """Return a `WordInputs` that gets the biLM's layers from a function."""
        other = copy(self)
        other._fetch = fetch
        return other

    def find_rows(self, sentences: Iterable[Sequence[str]]) -> Tensor:
        """Find the rows of the static vectors that sentences need; 0 for words without one."""
        words = set(chain.from_iterable(sentences))
        return torch.tensor([find_row(self._rows, word) for word in words]).long().unique()

    def warn_of_unknown(self, sentences: Iterable[Sequence[str]]) -> None:
        """Warn if at least half of the words of sentences have no static vector."""
        counts = count_words(sentences)
        found = sum(count for word, count in counts.items() if find_row(self._rows, word))
        if self._rows and found <= counts.total() / 2:
            logger.warning(
                "%d of %d words of the text have a static vector. Do text and vectors "
                "have the same language, case, tokenisation and Unicode normalisation?",
                found,
                counts.total(),
            )

    def fill(self, sentences: Sequence[Sequence[str]]) -> None:
        """Fill the cache before training, so that rounding does not depend on the batches."""
        if (fetch := self._find_fetch()) is None:
            return
        with tqdm(total=len(sentences), desc="biLM", unit="sentence", disable=None) as bar:
            for start in range(0, len(sentences), SENTENCES_PER_FILL):
                if self._cache is not None and self._cache.is_full:
                    return
                chunk = sentences[start : start + SENTENCES_PER_FILL]
                for _ in fetch(chunk, self._compute):
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

    def _compute(self, sentences: Iterable[Sequence[str]]) -> Iterator[Tensor]:
        with torch.no_grad():
            for layers in embed_layers(sentences, self.model.elmo, self.tokenizer):
                yield layers.cpu()

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the static vectors' words into a model's folder."""
        self.tokenizer.save_pretrained(folder)
        if self._words:
            write_words(folder / STATIC_WORDS_NAME, self._words)
