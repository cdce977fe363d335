"""What bilm-tf's run behind `oracle/tf_checkpoints/train_tiny` drew by chance, drawn again.

Its script seeded Python's `random` and TensorFlow with 0, as is seen in what it left: characters
that the text does not have kept the values of that seed, bit for bit, and the run repeated from it
ends at the same perplexity. TensorFlow's operators draw from Philox, each from a seed of its own,
which `model.ckpt-660.meta` holds (`seed2`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hf_elmo.text.text_reader import SentenceReader

SEED = 0
RUN_ROWS, RUN_WINDOW, RUN_WIDTH, RUN_CELLS = 16, 10, 16, 32
FILTERS = {1: (29, 8), 2: (48, 8), 3: (67, 16)}  # operator seed and number, by width
BACKWARD = 976  # operators of the backward direction come so much later
ROUNDS = 10
OUTPUTS_PER_DRAW = 256  # counters that TensorFlow sets aside for each number drawn
OUTPUTS_PER_CANDIDATE = 512  # and for each candidate

Floats = npt.NDArray[np.float32]


class Philox:
    """TensorFlow's random numbers (tensorflow/core/lib/random/philox_random.h), of one operator."""

    def __init__(self, operator_seed: int) -> None:
        self._operator_seed = operator_seed
        self._counter = 0

    def uniform(self, *shape: int) -> Floats:
        """Draw from [0, 1), as `RandomUniform` does."""
        size = int(np.prod(shape))
        return _to_unit(self._draw(size, size * OUTPUTS_PER_DRAW)).reshape(shape)

    def normal(self, *shape: int) -> Floats:
        """Draw from the standard normal distribution, as `RandomStandardNormal` does."""
        size = int(np.prod(shape))
        units = _to_unit(self._draw(size, size * OUTPUTS_PER_DRAW))
        radius = np.sqrt(np.float32(-2) * np.log(np.maximum(units[0::2], np.float32(1e-7))))
        angle = np.float32(2 * np.pi) * units[1::2]
        return np.stack([np.sin(angle) * radius, np.cos(angle) * radius], axis=1).reshape(shape)

    def draw_log_uniform(self, count: int, vocab_size: int, _: object) -> tuple[Tensor, Tensor]:
        """Draw distinct candidates as `LogUniformCandidateSampler` does; see `losses`."""
        bits = self._draw(16 * count, count * OUTPUTS_PER_CANDIDATE).astype(np.uint64)
        mantissas = ((bits[0::2] & np.uint64(0xFFFFF)) << np.uint64(32)) | bits[1::2]
        units = (mantissas | np.uint64(1023 << 52)).view(np.float64) - 1
        drawn = np.exp(units * np.log1p(vocab_size)).astype(np.int64) - 1
        _, first = np.unique(drawn, return_index=True)
        places = np.sort(first)[:count]
        return torch.from_numpy(drawn[places]), torch.tensor(places[-1] + 1)

    def _draw(self, size: int, num_reserved: int) -> npt.NDArray[np.uint32]:
        low = np.uint64(0xFFFFFFFF)
        counters = np.arange(-(-size // 4), dtype=np.uint64) + np.uint64(self._counter)
        self._counter += num_reserved
        a, b = counters & low, counters >> np.uint64(32)
        c, d = np.full_like(a, self._operator_seed), np.zeros_like(a)
        for number in range(ROUNDS):
            key_a = np.uint64((SEED + number * 0x9E3779B9) & 0xFFFFFFFF)
            key_b = np.uint64(number * 0xBB67AE85 & 0xFFFFFFFF)
            product_a, product_c = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
            a = (product_c >> np.uint64(32)) ^ b ^ key_a
            c = (product_a >> np.uint64(32)) ^ d ^ key_b
            b, d = product_c & low, product_a & low
        return np.stack([a, b, c, d], axis=1).astype(np.uint32).reshape(-1)[:size]


def _to_unit(bits: npt.NDArray[np.uint32]) -> Floats:
    mantissas = bits & np.uint32(0x7FFFFF)
    return (mantissas | np.uint32(127 << 23)).view(np.float32) - np.float32(1)


def draw_initial_values(vocab_size: int) -> dict[str, Tensor]:
    """Draw the weights that the run began with, by the names of `ElmoForPreTraining`."""

    def uniform(seed: int, bound: float, *shape: int) -> Floats:
        return Philox(seed).uniform(*shape) * np.float32(2 * bound) - np.float32(bound)

    def normal(seed: int, *shape: int) -> Floats:
        return Philox(seed).normal(*shape) * np.float32(shape[0] ** -0.5)

    width = sum(number for _, number in FILTERS.values())
    characters = np.concatenate([np.zeros((1, 4), np.float32), uniform(12, 1.0, 261, 4)])
    values = {"char_embedding.weight": characters, "projection.weight": normal(109, width, 16).T}
    for place, (span, (seed, number)) in enumerate(FILTERS.items()):
        kernel = uniform(seed, 0.05, span, 4, number)
        values[f"char_convolutions.{place}.weight"] = kernel.transpose(2, 1, 0)
    for name, seed in (("gate", 122), ("transform", 135)):
        values[f"highways.0.{name}.weight"] = normal(seed, width, width).T
    values = {f"elmo.token_encoder.{name}": value for name, value in values.items()}
    bound = (6 / (2 * RUN_WIDTH + 4 * RUN_CELLS)) ** 0.5
    for direction, offset in (("forward", 0), ("backward", BACKWARD)):
        for layer, seed in enumerate((237 + offset, 304 + offset)):
            prefix = f"elmo.{direction}_lstm.layers.{layer}."
            i, j, f, o = np.split(uniform(seed, bound, 2 * RUN_WIDTH, 4 * RUN_CELLS), 4, axis=1)
            kernel = np.concatenate([i, f, o, j], axis=1).T
            values[prefix + "input_weight"], values[prefix + "state_weight"] = np.split(
                kernel, 2, 1
            )
            projection = uniform(seed + 14, 8**-0.5, RUN_CELLS, RUN_WIDTH)
            values[prefix + "projection_weight"] = projection.T
    softmax = Philox(2136).normal(vocab_size, RUN_WIDTH) * np.float32(RUN_WIDTH**-0.5)
    values["softmax.weight"] = softmax
    return {name: torch.from_numpy(value.copy()) for name, value in values.items()}


def read_in_its_order(folder: Path) -> tuple[SentenceReader, SentenceReader]:
    """Read the text for the forward and the backward direction, endlessly, in the run's order.

    As in bilm/data.py (`LMDataset`), each direction takes file after file, in a new order on each
    pass, and shuffles each; both draw from one generator.
    """
    rng = Random(SEED)
    files = [folder / "part1.txt", folder / "part0.txt"]  # as glob gave them there

    def read(_: Random | None) -> Iterator[list[str]]:
        waiting: list[Path] = []
        while True:
            if not waiting:
                waiting = list(files)
                rng.shuffle(waiting)
            lines = waiting.pop().read_text("utf-8").split("\n")[:-1]
            rng.shuffle(lines)
            yield from map(str.split, lines)

    return read, read


def replay_dropout() -> Callable[..., Tensor]:
    """Make a dropout that drops what the run dropped; it stands for `torch.nn.functional`'s."""
    operators = []  # in the order of the calls: by layer, then direction; then before the softmax
    for first, second in ((222, 357), (289, 400)):
        seeds = [first, *(second + 87 * step for step in range(RUN_WINDOW - 1))]
        operators += [[Philox(seed + offset) for seed in seeds] for offset in (0, BACKWARD)]
    before_softmax = [Philox(1143), Philox(1143 + BACKWARD)]
    calls = 0

    def drop(x: Tensor, p: float, training: bool) -> Tensor:
        nonlocal calls
        if not training:
            return x
        place, calls = calls % 6, calls + 1
        if place < 4:
            units = np.concatenate([each.uniform(RUN_ROWS, RUN_WIDTH) for each in operators[place]])
        else:
            units = before_softmax[place - 4].uniform(RUN_ROWS, RUN_WINDOW, RUN_WIDTH)
            units = units.transpose(1, 0, 2).reshape(-1, RUN_WIDTH)
        return x * torch.from_numpy(units >= np.float32(p)) / (1 - p)

    return drop
