"""Windows over streams of sentences, as bilm-tf feeds them to the two directions."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .vocabulary import SENTENCE_END, SENTENCE_START, TargetVocabulary

Ids = npt.NDArray[np.int64]


class Window(NamedTuple):
    """One window of every row, in both directions.

    Attributes:
        words: Distinct input words; the first two are always `<S>` and `</S>`.
        forward: Places in `words` of the forward stream, shape `(window, batch)`.
        backward: Places in `words` of the backward stream, shape `(window, batch)`.
        forward_targets: Target ids: the next word, shape `(window, batch)`.
        backward_targets: Target ids: the word before, shape `(window, batch)`.
    """

    words: list[str]
    forward: Ids
    backward: Ids
    forward_targets: Ids
    backward_targets: Ids


class SentenceStream:
    """An endless or single pass over sentences that knows where it is.

    Args:
        open_pass: Given the number of a pass, from 0, yields its sentences in their order.
        num_passes: Passes to make; None = no end.
    """

    def __init__(
        self, open_pass: Callable[[int], Iterable[list[str]]], *, num_passes: int | None = None
    ) -> None:
        self._open_pass = open_pass
        self._num_passes = num_passes
        self.pass_number, self.num_taken = 0, 0
        self._sentences = iter(open_pass(0))

    def __next__(self) -> list[str]:
        while (words := next(self._sentences, None)) is None:
            if self.pass_number + 1 == self._num_passes or self.num_taken == 0:
                raise StopIteration
            self.seek(self.pass_number + 1, 0)
        self.num_taken += 1
        return words

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def seek(self, pass_number: int, num_taken: int) -> None:
        """Go to where `num_taken` sentences of a pass were taken, by reading past them."""
        self.pass_number, self.num_taken = pass_number, num_taken
        self._sentences = iter(self._open_pass(pass_number))
        for _ in range(num_taken):
            next(self._sentences)


class WindowStream:
    """Rows that take the next sentence of one stream whenever their own is used up.

    The rows of all processes are fed here, in the same order everywhere, and each process gets the
    windows of its own rows: what is trained on does not depend on the number of processes.
    Sentences run on from window to window, and from one to the next within a window. The backward
    stream is the same sentences, each reversed, not the forward window turned round. The last
    windows, for which not all rows can be filled, are dropped (bilm/data.py, `_get_batch`).

    Args:
        sentences: The stream that feeds all rows.
        vocabulary: Target words.
        num_rows: Rows of all processes together.
        window: Time steps of a window.
        rows: The rows of this process; None = all.
    """

    def __init__(
        self,
        sentences: SentenceStream,
        vocabulary: TargetVocabulary,
        *,
        num_rows: int,
        window: int,
        rows: range | None = None,
    ) -> None:
        self._sentences = sentences
        self._vocabulary = vocabulary
        self._window = window
        self._rows = range(num_rows) if rows is None else rows
        self._pending: list[list[str]] = [[] for _ in range(num_rows)]  # framed sentences ...
        self._places = [0] * num_rows  # ... and how much of each is read

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        forward: list[str] = []
        backward: list[str] = []
        forward_targets: list[str] = []
        backward_targets: list[str] = []
        for row in range(len(self._pending)):
            is_own = row in self._rows
            for framed, start, stop in self._feed(row):
                if is_own:
                    forward += framed[start:stop]
                    forward_targets += framed[start + 1 : stop + 1]
                    turned = framed[::-1]
                    backward += turned[start:stop]
                    backward_targets += turned[start + 1 : stop + 1]
        places = {SENTENCE_START: 0, SENTENCE_END: 1}
        inputs = [[places.setdefault(word, len(places)) for word in x] for x in (forward, backward)]
        targets = map(self._vocabulary.convert_words_to_ids, (forward_targets, backward_targets))
        return Window(list(places), *map(self._shape, (*inputs, *targets)))

    def _feed(self, row: int) -> list[tuple[list[str], int, int]]:
        """Fill a row's window with spans of framed sentences; the end of the text is passed on."""
        spans = []
        filled = 0
        while filled < self._window:
            if self._places[row] >= len(self._pending[row]) - 1:
                self._pending[row] = [SENTENCE_START, *next(self._sentences), SENTENCE_END]
                self._places[row] = 0
            framed, start = self._pending[row], self._places[row]
            stop = min(start + self._window - filled, len(framed) - 1)
            self._places[row] = stop
            filled += stop - start
            spans.append((framed, start, stop))
        return spans

    def _shape(self, ids: list[int]) -> Ids:
        rows = np.array(ids, dtype=np.int64).reshape(len(self._rows), self._window)
        return np.ascontiguousarray(rows.T)

    @property
    def words_per_window(self) -> int:
        """Return the targets of a window, all rows and one direction."""
        return len(self._pending) * self._window

    def state_dict(self) -> dict[str, Any]:
        """Describe the position exactly, in what JSON can hold."""
        return {
            "pass_number": self._sentences.pass_number,
            "num_taken": self._sentences.num_taken,
            "pending": self._pending,
            "places": self._places,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position that `state_dict` described.

        Raises:
            ValueError: If it was that of another number of rows.
        """
        if len(state["pending"]) != len(self._pending):
            raise ValueError(
                f"Expected the position of {len(self._pending)} rows, got {len(state['pending'])}: "
                "resume with the same batch size times processes."
            )
        self._pending, self._places = list(state["pending"]), list(state["places"])
        self._sentences.seek(state["pass_number"], state["num_taken"])


def pass_generator(seed: int, pass_number: int) -> random.Random:
    """Make the source of chance of one pass over the text."""
    return random.Random(f"{seed} {pass_number}")
