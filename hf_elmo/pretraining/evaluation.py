"""Perplexity of a language model on held-out text."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .language_model import WindowedLanguageModel


@dataclass(frozen=True)
class Perplexity:
    """Perplexities of both directions, and of their average.

    Attributes:
        forward: Of the words given those before, `</S>` included.
        backward: Of the words given those after, `<S>` included; None if unidirectional.
        average: `exp` of the mean loss of both directions, as bilm-tf reports it.
        num_targets: Predicted words of a direction.
    """

    forward: float
    backward: float | None
    average: float
    num_targets: int


@torch.inference_mode()
def evaluate_windows(
    model: WindowedLanguageModel, windows: Iterable[dict[str, Tensor]]
) -> Perplexity:
    """Compute the perplexity over windows, with the full softmax and the state carried on."""
    was_training, model_state = model.training, model.state
    model.eval()
    model.state = None
    sums, count = [0.0, 0.0], 0
    for window in windows:
        losses = model(**window)
        count += losses[0].numel()
        for direction, loss in enumerate(losses):
            sums[direction] += 0.0 if loss is None else float(loss.double().sum())
    model.train(was_training)
    model.state = model_state
    return summarize(sums[0], sums[1] if model.model.config.bidirectional else None, count)


def summarize(forward: float, backward: float | None, num_targets: int) -> Perplexity:
    """Turn sums of losses into perplexities.

    Raises:
        ValueError: If there is no target.
    """
    if num_targets == 0:
        raise ValueError("Expected text to evaluate; there is no full window (or no sentence).")
    average = forward if backward is None else (forward + backward) / 2
    return Perplexity(
        math.exp(forward / num_targets),
        None if backward is None else math.exp(backward / num_targets),
        math.exp(average / num_targets),
        num_targets,
    )
