"""How fast a step of training of a GRU is by its own loop, beside torch's in the same run.

OMP_NUM_THREADS=1 python tests/benchmarks/gru.py

The layers of questions: preset "cpu" (50 wide, 16 paragraphs) and "paper" (90, 45 paragraphs).
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hf_elmo.tasks.layers.recurrent import run_sentences

REPEATS = 15
TOKENS = 150


def time_step(run: Callable[..., Tensor], *inputs: Any) -> float:
    start = time.process_time()
    run(*inputs).sum().backward()
    return time.process_time() - start


def run_plainly(layers: nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    return layers(x)[0]


def main() -> None:
    print(f"{torch.get_num_threads()} threads, processor time, median of {REPEATS}")
    print("| batch | hidden size | torch, ms | own loop, ms | torch / own |")
    print("|---|---|---|---|---|")
    for batch, size in ((16, 50), (45, 90)):
        layers = nn.GRU(2 * size, size, batch_first=True, bidirectional=True)
        x = torch.randn(batch, TOKENS, 2 * size, requires_grad=True)
        inputs = (layers, x, torch.ones(batch, TOKENS, dtype=torch.bool))
        pairs = [
            (time_step(run_plainly, *inputs), time_step(run_sentences, *inputs))
            for _ in range(REPEATS)
        ]
        old, new = (1000 * median(times) for times in zip(*pairs, strict=True))
        ratio = median(old / new for old, new in pairs)
        print(f"| {batch} | {size} | {old:.1f} | {new:.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
