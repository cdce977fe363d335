"""Run batches of long sentences in windows that fit into memory, with the same result.

`WindowRunner._cut` selects the length of a window: as many steps as fit into `max_batch_tokens`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_elmo.array_operations import take
from hf_elmo.bilm import ElmoBilm
from hf_elmo.character_ids import spell_boundaries
from hf_elmo.loading import find_input_device
from hf_elmo.lstm import State
from hf_elmo.modeling_outputs import ElmoState
from hf_elmo.tokenization_elmo import ElmoTokenizer

NUM_BOUNDARIES = 2  # <S> and </S>: the first two rows of each table of word vectors


class SentenceWindow(NamedTuple):
    """Range of time steps of a batch.

    Attributes:
        start, stop: First time step, and the step after the last. Time step 0 is `<S>`.
        backward: Backward state at the right edge of the window; None = no backward direction.
    """

    start: int
    stop: int
    backward: State | None


def refuse_training(model: ElmoBilm) -> None:
    """Refuse a model in training mode, where results are random."""
    if model.training:
        raise ValueError("Expected a model in evaluation mode. Call model.eval() first.")


class WindowRunner:
    """Run batches through a biLM in windows within a memory budget.

    Args:
        model: biLM in evaluation mode.
        tokenizer: Tokenizer of the model.
        select: Reduces the layers of a window, each `(steps, hidden_size)`, to the requested
            output, `(..., steps, hidden_size)`.
        max_batch_tokens: Time steps per window, over all rows.
        device: Device of the vectors.
        dtype: Data type of the vectors.
    """

    def __init__(
        self,
        model: ElmoBilm,
        tokenizer: ElmoTokenizer,
        select: Callable[[list[Tensor]], Tensor],
        max_batch_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.select = select
        self.max_batch_tokens = max_batch_tokens
        self.device = device
        self.dtype = dtype
        self.boundaries = spell_boundaries(model.config)
        cells = model.config.max_characters_per_token
        if self.boundaries[0] is not None and tokenizer.max_characters_per_token != cells:
            raise ValueError(
                f"Expected a tokenizer with max_characters_per_token {cells}, as the model has, "
                f"got {tokenizer.max_characters_per_token}. Load it by the name of the model."
            )
        for name, row in zip(("input_ids", "word_input_ids"), self.boundaries, strict=True):
            if (row is not None) != (name in tokenizer.model_input_names):
                raise ValueError(
                    f"Expected a tokenizer {'without' if row is None else 'with'} {name}, as the "
                    "model reads it. Load it by the name of the model."
                )

    def run(self, batch: list[Sequence[str]]) -> Iterator[tuple[int, int, Tensor]]:
        """Run a batch in windows; its first sentence must be the longest.

        The result is exact, because neither direction reads the output of the other. The first pass
        runs from right to left and stores only the backward state at the right edge of each window.
        The second pass runs from left to right and computes each window from its edges' states.

        Returns:
            An iterator of triples: row, position of the first word, vectors of the words. The
            triples of a row are in the order of its words.

        Raises:
            ValueError: If the model is in training mode.
        """
        refuse_training(self.model)
        device = find_input_device(self.model)
        like = torch.empty(0, dtype=self.model.dtype, device=device)
        forward, backward = self.model.zero_state(len(batch), like)
        whole = SentenceWindow(0, len(batch[0]) + NUM_BOUNDARIES, backward)
        windows = self._sweep(batch, whole)
        while windows:
            window = windows.pop()
            vectors, forward, places = self._run_window(batch, window, forward)
            for row, words in enumerate(batch):
                start, stop = max(window.start - 1, 0), min(window.stop - 1, len(words))
                if start < stop or (window.start == 0 and len(words) == 0):
                    places_of_row = places[1 if window.start == 0 else 0 :, row][: stop - start]
                    # Copied, so that the batch can be freed; outside inference mode, so that heads
                    # can be trained on the copy. The dtype is converted per sentence, because most
                    # sentences are too short to start PyTorch's threads.
                    yield row, start, take(vectors, places_of_row, -2).to(self.dtype)

    @torch.inference_mode()
    def _sweep(self, batch: list[Sequence[str]], whole: SentenceWindow) -> list[SentenceWindow]:
        """Split time steps into windows that fit the budget; return the first window last."""
        edges = self._cut(batch, whole)
        windows = []
        backward = whole.backward
        for start, stop in reversed(list(itertools.pairwise(edges))):
            windows.append(SentenceWindow(start, stop, backward))
            if backward is not None and start > whole.start:
                packed, sizes, _ = self._pack(batch, start, stop)
                ((_, backward),) = self.model.run_lstms((None, packed), sizes, (None, backward))
        return windows

    def _cut(self, batch: list[Sequence[str]], whole: SentenceWindow) -> list[int]:
        """Find the edges of the windows.

        A window has at most `max_batch_tokens` steps over all rows, but at least one time step.
        """
        if len(batch) * (whole.stop - whole.start) <= self.max_batch_tokens:
            return [whole.start, whole.stop]
        lengths = np.array([len(words) + NUM_BOUNDARIES for words in batch])
        times = np.arange(whole.start, whole.stop)
        alive = np.searchsorted(-lengths, -times)  # number of sentences that reach each time step
        steps = np.cumsum(alive)  # of all sentences, up to and including each time step
        edges, done = [0], 0
        while edges[-1] < len(times):
            fitting = int(np.searchsorted(steps, done + self.max_batch_tokens, side="right"))
            edges.append(max(fitting, edges[-1] + 1))
            done = int(steps[edges[-1] - 1])
        return [whole.start + edge for edge in edges]

    @torch.inference_mode()
    def _run_window(
        self, batch: list[Sequence[str]], window: SentenceWindow, forward: State
    ) -> tuple[Tensor, State, Tensor]:
        """Run one window; return its vectors, its last forward state, and `_pack`'s indices."""
        packed, sizes, places = self._pack(batch, window.start, window.stop)
        layers, state = self.model.run_bilm(packed, sizes, ElmoState(forward, window.backward))
        vectors = self.select(layers)
        if vectors.device != self.device:
            vectors = vectors.to(self.device, self.dtype)
        return vectors, state.forward, places

    def _pack(
        self, batch: list[Sequence[str]], start: int, stop: int
    ) -> tuple[Tensor, list[int], Tensor]:
        """Pack time steps `start` to `stop - 1` of sentences, longest first, like `PackedSequence`.

        `<S>` is step 0 of each sentence; `</S>` follows its last word.

        Returns:
            Word vectors `(packed words, projection_size)`; the number of sentences at each step;
            and the row of each sentence's step in the vectors, shape `(stop - start, batch)`.
        """
        numbers: dict[str, int] = {}
        grid = np.full((stop - start, len(batch)), -1)
        for row, words in enumerate(batch):
            column = [
                numbers.setdefault(word, len(numbers) + NUM_BOUNDARIES)
                for word in words[max(start - 1, 0) : max(stop - 1, 0)]
            ]
            if start == 0:
                column.insert(0, 0)
            if start <= len(words) + 1 < stop:
                column.append(1)
            grid[: len(column), row] = column
        alive = grid >= 0
        places = torch.from_numpy(np.cumsum(alive).reshape(grid.shape) - 1).to(self.device)
        entries = torch.from_numpy(grid[alive])
        sizes = [int(size) for size in alive.sum(axis=1)]
        return take(self._encode(list(numbers)), entries), sizes, places

    def _encode(self, words: list[str]) -> Tensor:
        """Encode the boundary tokens and distinct words, shape `(2 + words, projection_size)`."""
        ids = zip(self.boundaries, self.tokenizer.spell(words), strict=True)
        rows = [None if x is None or y is None else torch.cat([x, y]) for x, y in ids]
        return self.model.encode_words(*rows)
