"""Windows over streams of sentences for both directions, as in bilm-tf."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hf_elmo.text.text_reader import SentenceReader
from hf_elmo.tokenization_batches import check_words
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .typing_errors import misspell
from .vocabulary import SENTENCE_END, SENTENCE_START, TargetVocabulary

Ids = npt.NDArray[np.int64]
MOST_EMPTY = 100  # passes in a row without a sentence; small weights can leave some empty
BOUNDARIES = (SENTENCE_START, SENTENCE_END)


class SentenceStream:
    """Sentences of a text over several passes, with a position for resuming.

    Args:
        text: The text.
        seed: Seed of the order, which differs in each pass; None = the text's own order.
        num_passes: Number of passes; None = unlimited.
    """

    def __init__(
        self, text: SentenceReader, *, seed: int | str | None = None, num_passes: int | None = None
    ) -> None:
        self._text = text
        self._seed = seed
        self._num_passes = num_passes
        self._num_empty = 0
        self.seek(0, 0)

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        while (words := next(self._sentences, None)) is None:
            if self._seed is None and self.num_taken == 0:
                raise StopIteration
            self._num_empty = 0 if self.num_taken else self._num_empty + 1
            if self._num_empty == MOST_EMPTY:
                raise ValueError(
                    f"Expected sentences in passes over the text, got none in {MOST_EMPTY} passes: "
                    "the weights of --train are too small."
                )
            if self.pass_number + 1 == self._num_passes:
                raise StopIteration
            self.seek(self.pass_number + 1, 0)
        check_words(words, self.num_taken)
        self.num_taken += 1
        return words

    def seek(self, pass_number: int, num_taken: int) -> None:
        """Start a pass, and skip its first `num_taken` sentences.

        Raises:
            ValueError: If the pass has fewer sentences.
        """
        self.pass_number, self.num_taken = pass_number, num_taken
        rng = None if self._seed is None else random.Random(f"{self._seed} {pass_number}")
        self._sentences = self._text(rng)
        for number in range(num_taken):
            if next(self._sentences, None) is None:
                raise ValueError(
                    f"Expected the text of the interrupted run, with at least {num_taken} "
                    f"sentences, got {number}."
                )


class StreamWindow(NamedTuple):
    """Window of the streams in both directions.

    Attributes:
        words: `<S>`, `</S>` and the distinct input words.
        forward: Forward stream, as indices into `words`, shape `(window, rows)`.
        backward: Backward stream, as indices into `words`, shape `(window, rows)`.
        forward_targets: Target ids of the next words, shape `(window, rows)`.
        backward_targets: Target ids of the previous words, shape `(window, rows)`.
    """

    words: list[str]
    forward: Ids
    backward: Ids
    forward_targets: Ids
    backward_targets: Ids


class Rows:
    """Batch rows of one direction. Each row takes sentence after sentence from a shared stream.

    Args:
        sentences: Stream that feeds all rows.
        num_rows: Number of rows of all processes together.
        own_rows: Rows of this process. The other rows take their sentences too, so that the result
            does not depend on the number of processes.
        is_reversed: Whether each sentence is read backwards.
    """

    def __init__(
        self, sentences: SentenceStream, num_rows: int, own_rows: range, *, is_reversed: bool
    ) -> None:
        self._sentences = sentences
        self._own_rows = own_rows
        self._is_reversed = is_reversed
        self._framed: list[list[str]] = [[] for _ in range(num_rows)]  # sentence of each row
        self._places = [0] * num_rows  # position in the sentence of each row

    def take(self, steps: int) -> tuple[list[str], list[str]]:
        """Read `steps` words of every row.

        Returns:
            Inputs and targets of the rows of this process, row by row.

        Raises:
            StopIteration: If the text ends before every row is filled.
        """
        inputs: list[str] = []
        targets: list[str] = []
        for row in range(len(self._places)):
            missing = steps
            while missing:
                if self._places[row] >= len(self._framed[row]) - 1:
                    framed = [SENTENCE_START, *next(self._sentences), SENTENCE_END]
                    self._framed[row] = framed[::-1] if self._is_reversed else framed
                    self._places[row] = 0
                framed, start = self._framed[row], self._places[row]
                stop = min(start + missing, len(framed) - 1)
                self._places[row] = stop
                missing -= stop - start
                if row in self._own_rows:
                    inputs += framed[start:stop]
                    targets += framed[start + 1 : stop + 1]
        return inputs, targets

    def state_dict(self) -> dict[str, Any]:
        """Return the exact position as a JSON-serialisable dictionary."""
        return {
            "pass_number": self._sentences.pass_number,
            "num_taken": self._sentences.num_taken,
            "sentences": self._framed,
            "places": self._places,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position that `state_dict` returned.

        Raises:
            ValueError: If the number of rows differs.
        """
        if len(state["places"]) != len(self._places):
            raise ValueError(
                f"Expected the position of {len(self._places)} rows, got {len(state['places'])}. "
                "Resume with the same batch size times processes."
            )
        self._framed, self._places = list(state["sentences"]), list(state["places"])
        self._sentences.seek(state["pass_number"], state["num_taken"])


class WindowStream:
    """Windows over two streams of sentences, one per direction, as in bilm-tf.

    In each row, sentences follow one another without gaps. A sentence can continue in the next
    window. The backward direction has its own stream and reads each sentence backwards, so its
    windows are not the reversed forward windows. The end of the text is dropped when a row cannot
    be filled (bilm/data.py, `BidirectionalLMDataset`, `_get_batch`).

    Every process reads the text for the rows of all processes, but returns only its own rows. So
    the training text does not depend on the number of processes.

    Args:
        forward: Sentences for the forward direction.
        backward: Sentences for the backward direction, from the same text. Use the same order in
            evaluation, but another order in training, so that a step sees more of the text.
        vocabulary: Target words.
        num_rows: Number of rows of all processes together.
        window: Number of time steps per window.
        feed: Time steps that a row reads from the stream before the next row reads; None =
            `window`. bilm-tf's test uses 1, so one window corresponds to `window` of its steps.
        rows: Rows of this process; None = all.
        char_noise: Share of the input words of three letters and more that get a typing error.
            Targets are never changed.
        seed: Seed of the typing errors, which also depend on window, row and direction.
    """

    def __init__(
        self,
        forward: SentenceStream,
        backward: SentenceStream,
        vocabulary: TargetVocabulary,
        *,
        num_rows: int,
        window: int,
        feed: int | None = None,
        rows: range | None = None,
        char_noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._char_noise, self._seed = char_noise, seed
        self._num_taken = 0  # number of windows
        self._vocabulary = vocabulary
        self._own_rows = range(num_rows) if rows is None else rows
        self._forward = Rows(forward, num_rows, self._own_rows, is_reversed=False)
        self._backward = Rows(backward, num_rows, self._own_rows, is_reversed=True)
        self._num_feeds, self._feed_size = (1, window) if feed is None else (window // feed, feed)
        self.targets_per_window = num_rows * self._num_feeds * self._feed_size

    def __iter__(self) -> Iterator[StreamWindow]:
        return self

    def __next__(self) -> StreamWindow:
        streams: list[list[str]] = [[], [], [], []]
        for number in range(self._num_feeds):
            try:
                parts = (
                    *self._forward.take(self._feed_size),
                    *self._backward.take(self._feed_size),
                )
            except StopIteration:
                if number == 0:
                    raise
                break
            for stream, part in zip(streams, parts, strict=True):
                stream.extend(part)
        forward, forward_targets, backward, backward_targets = streams
        if self._char_noise:
            forward, backward = self._misspell(forward, 0), self._misspell(backward, 1)
        self._num_taken += 1
        places = {word: place for place, word in enumerate(BOUNDARIES)}
        inputs = ([places.setdefault(word, len(places)) for word in x] for x in (forward, backward))
        targets = map(self._vocabulary.convert_words_to_ids, (forward_targets, backward_targets))
        arranged = [self._arrange(ids) for ids in (*inputs, *targets)]
        return StreamWindow(list(places), *arranged)

    def _misspell(self, inputs: list[str], direction: int) -> list[str]:
        """Make typing errors in the inputs of each row."""
        result: list[str] = []
        for number, start in enumerate(range(0, len(inputs), self._feed_size)):
            feed, own_row = divmod(number, len(self._own_rows))
            place = f"{self._num_taken} {direction} {feed} {self._own_rows[own_row]}"
            rng = random.Random(f"{self._seed} {place}")
            for word in inputs[start : start + self._feed_size]:
                is_hit = rng.random() < self._char_noise and word not in BOUNDARIES
                result.append(misspell(word, rng) if is_hit else word)
        return result

    def _arrange(self, ids: list[int]) -> Ids:
        array = np.array(ids, dtype=np.int64)
        array = array.reshape(-1, len(self._own_rows), self._feed_size)
        return np.ascontiguousarray(array.transpose(0, 2, 1)).reshape(-1, len(self._own_rows))

    def state_dict(self) -> dict[str, Any]:
        """Return the exact position as a JSON-serialisable dictionary."""
        return {
            "forward": self._forward.state_dict(),
            "backward": self._backward.state_dict(),
            "num_windows": self._num_taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position that `state_dict` returned.

        Raises:
            ValueError: If the number of rows differs.
        """
        self._forward.load_state_dict(state["forward"])
        self._backward.load_state_dict(state["backward"])
        self._num_taken = state["num_windows"]


class WindowCollator:
    """Convert a window to the arguments of `WindowedLanguageModel.forward`.

    Each distinct word is converted to ids only once. Words are sorted by length, to reduce
    padding characters.

    Args:
        tokenizer: Tokenizer of the biLM.
    """

    def __init__(self, tokenizer: ElmoTokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, window: StreamWindow) -> dict[str, Tensor]:
        """Return the arguments: ids of the distinct words, streams of indices, and targets."""
        words = sorted(window.words[len(BOUNDARIES) :], key=len)
        spelled = zip(("input_ids", "word_input_ids"), self._tokenizer.spell(words), strict=True)
        tensors = {name: ids for name, ids in spelled if ids is not None}
        new_places = {word: place for place, word in enumerate((*BOUNDARIES, *words))}
        order = np.array([new_places[word] for word in window.words], np.int64)
        return tensors | {
            "forward_inputs": torch.from_numpy(order[window.forward]),
            "backward_inputs": torch.from_numpy(order[window.backward]),
            "forward_targets": torch.from_numpy(window.forward_targets),
            "backward_targets": torch.from_numpy(window.backward_targets),
        }
