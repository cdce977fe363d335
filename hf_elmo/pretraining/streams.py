"""Windows over streams of sentences, as bilm-tf feeds them to the two directions."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .text import Text
from .vocabulary import SENTENCE_END, SENTENCE_START, TargetVocabulary

Ids = npt.NDArray[np.int64]
BOUNDARIES = (SENTENCE_START, SENTENCE_END)


class SentenceStream:
    """Pass after pass over the sentences of a text, with a position to come back to.

    Args:
        text: The text.
        seed: Seed of the order, another one in each pass; None = the text's own order.
        num_passes: Passes to make; None = no end.
    """

    def __init__(
        self, text: Text, *, seed: int | None = None, num_passes: int | None = None
    ) -> None:
        self._text = text
        self._seed = seed
        self._num_passes = num_passes
        self.seek(0, 0)

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        while (words := next(self._sentences, None)) is None:
            if self.pass_number + 1 == self._num_passes or self.num_taken == 0:
                raise StopIteration
            self.seek(self.pass_number + 1, 0)
        self.num_taken += 1
        return words

    def seek(self, pass_number: int, num_taken: int) -> None:
        """Go to where `num_taken` sentences of a pass were taken, by reading past them."""
        self.pass_number, self.num_taken = pass_number, num_taken
        rng = None if self._seed is None else random.Random(f"{self._seed} {pass_number}")
        self._sentences = self._text(rng)
        for _ in range(num_taken):
            next(self._sentences)


class Window(NamedTuple):
    """One window of some rows, in both directions.

    Attributes:
        words: Distinct input words, after `<S>` and `</S>`.
        forward: Places in `words` of the forward stream, shape `(window, rows)`.
        backward: Places in `words` of the backward stream, shape `(window, rows)`.
        forward_targets: Target ids: the next word, shape `(window, rows)`.
        backward_targets: Target ids: the word before, shape `(window, rows)`.
    """

    words: list[str]
    forward: Ids
    backward: Ids
    forward_targets: Ids
    backward_targets: Ids


class WindowStream:
    """Rows that take the next sentence of one stream whenever their own is used up.

    Sentences run on from window to window, and one follows the other within a window. The backward
    stream is the same sentences, each reversed; it is not the forward window turned round. The end
    of the text, where not every row can be filled, is dropped (bilm/data.py, `_get_batch`).

    The rows of all processes are fed here, in the same way in each, and a process gets the windows
    of its own rows: what is trained on does not depend on the number of processes.

    Args:
        sentences: The stream that feeds all rows.
        vocabulary: Target words.
        num_rows: Rows of all processes together.
        window: Time steps of a window.
        feed: Time steps that a row is filled with before the next one is; None = `window`. With 1,
            the windows are `window` of bilm-tf's test steps in one.
        rows: The rows of this process; None = all.
    """

    def __init__(
        self,
        sentences: SentenceStream,
        vocabulary: TargetVocabulary,
        *,
        num_rows: int,
        window: int,
        feed: int | None = None,
        rows: range | None = None,
    ) -> None:
        self.sentences = sentences
        self._vocabulary = vocabulary
        self._num_feeds, self._feed_size = (1, window) if feed is None else (window // feed, feed)
        self._rows = range(num_rows) if rows is None else rows
        self._framed: list[list[str]] = [[] for _ in range(num_rows)]  # each row's sentence ...
        self._places = [0] * num_rows  # ... and how much of it is read
        self.targets_per_window = num_rows * self._num_feeds * self._feed_size

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        feeds: list[list[list[str]]] = []
        try:
            while len(feeds) < self._num_feeds:
                feeds.append(self._feed())
        except StopIteration:
            if not feeds:
                raise
        places = {word: place for place, word in enumerate(BOUNDARIES)}
        streams = [[word for feed in feeds for word in feed[kind]] for kind in range(4)]
        inputs = ([places.setdefault(word, len(places)) for word in x] for x in streams[:2])
        targets = map(self._vocabulary.convert_words_to_ids, streams[2:])
        ids = [self._arrange(x, len(feeds)) for x in (*inputs, *targets)]
        return Window(list(places), *ids)

    def _feed(self) -> list[list[str]]:
        """Fill each row with `feed` steps: inputs of both directions, then their targets."""
        streams: list[list[str]] = [[], [], [], []]
        spans = [span for row in range(len(self._framed)) for span in self._feed_row(row)]
        for framed, start, stop in spans:
            turned = framed[::-1]
            for stream, words, shift in zip(
                streams, (framed, turned, framed, turned), (0, 0, 1, 1), strict=True
            ):
                stream.extend(words[start + shift : stop + shift])
        return streams

    def _feed_row(self, row: int) -> list[tuple[list[str], int, int]]:
        spans = []
        missing = self._feed_size
        while missing:
            if self._places[row] >= len(self._framed[row]) - 1:
                self._framed[row] = [SENTENCE_START, *next(self.sentences), SENTENCE_END]
                self._places[row] = 0
            framed, start = self._framed[row], self._places[row]
            stop = min(start + missing, len(framed) - 1)
            self._places[row] = stop
            missing -= stop - start
            spans.append((framed, start, stop))
        return spans if row in self._rows else []

    def _arrange(self, ids: list[int], num_feeds: int) -> Ids:
        array = np.array(ids, dtype=np.int64)
        array = array.reshape(num_feeds, len(self._rows), self._feed_size)
        return np.ascontiguousarray(array.transpose(0, 2, 1)).reshape(-1, len(self._rows))

    def state_dict(self) -> dict[str, Any]:
        """Describe the position exactly, in what JSON can hold."""
        return {
            "pass_number": self.sentences.pass_number,
            "num_taken": self.sentences.num_taken,
            "sentences": self._framed,
            "places": self._places,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position that `state_dict` described.

        Raises:
            ValueError: If it was that of another number of rows.
        """
        if len(state["places"]) != len(self._places):
            raise ValueError(
                f"Expected the position of {len(self._places)} rows, got {len(state['places'])}. "
                "Resume with the same batch size times processes."
            )
        self._framed, self._places = list(state["sentences"]), list(state["places"])
        self.sentences.seek(state["pass_number"], state["num_taken"])


class WindowCollator:
    """Make the tensors of a window, as `WindowedLanguageModel` takes them.

    Each distinct word is spelled once, and words of like lengths stand together, so that few
    padding characters are encoded.

    Args:
        tokenizer: The biLM's tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def __call__(self, window: Window) -> dict[str, Tensor]:
        """Spell the words of a window, and say which of them stands where."""
        words = sorted(window.words[len(BOUNDARIES) :], key=len)
        encoded = self._tokenizer([words], is_split_into_words=True, return_tensors="pt")
        tensors = {name: ids[0] for name, ids in encoded.items() if name != "attention_mask"}
        new_places = {word: place for place, word in enumerate((*BOUNDARIES, *words))}
        order = np.array([new_places[word] for word in window.words], np.int64)
        return tensors | {
            "forward_inputs": torch.from_numpy(order[window.forward]),
            "backward_inputs": torch.from_numpy(order[window.backward]),
            "forward_targets": torch.from_numpy(window.forward_targets),
            "backward_targets": torch.from_numpy(window.backward_targets),
        }
