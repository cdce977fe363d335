"""Pack the sentences of a batch for the LSTMs, time step by time step, and unpack them."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pack_words(mask: Tensor) -> tuple[Tensor, list[int], Tensor, Tensor, Tensor]:
    """Pack sentences with `<S>` and `</S>`, time step by time step, longest sentence first.

    Args:
        mask: True where there is a word, shape `(batch, tokens)`.

    Returns:
        order: Indices of the sentences, longest sentence first, shape `(batch,)`.
        batch_sizes: Number of sentences that reach each time step.
        entries: For each step, 0 = `<S>`, 1 = `</S>`, else 2 + the word's index in reading
            order, shape `(steps,)`.
        rows, columns: Position of each step in a batch `(batch, tokens + 2)` with boundaries, each
            of shape `(steps,)`.
    """
    batch, tokens = mask.shape
    sentences = torch.arange(batch, device=mask.device)
    lengths = mask.sum(dim=1)
    rows, places = mask.nonzero(as_tuple=True)
    ranks = mask.cumsum(dim=1)[rows, places]  # 1 for the first word of a sentence
    entries = torch.zeros(batch, tokens + 2, dtype=torch.long, device=mask.device)
    entries[rows, ranks] = torch.arange(2, 2 + len(rows), device=mask.device)
    entries[sentences, lengths + 1] = 1
    columns = torch.zeros_like(entries)
    columns[rows, ranks] = places + 1
    if tokens:
        columns[:, 0] = torch.where(lengths > 0, columns[:, 1] - 1, 0)
    columns[sentences, lengths + 1] = columns[sentences, lengths] + 1
    order = lengths.argsort(descending=True, stable=True)
    is_step = torch.arange(tokens + 2, device=mask.device)[:, None] < lengths[order] + 2
    batch_sizes = [size for size in is_step.sum(dim=1).tolist() if size]
    flat = is_step.nonzero()  # (steps, [time, sorted row])
    step_rows = order[flat[:, 1]]
    step = (step_rows, flat[:, 0])
    return order, batch_sizes, entries[step], step_rows, columns[step]


def lay_out(packed: Tensor, shape: Sequence[int], rows: Tensor, columns: Tensor) -> Tensor:
    """Unpack vectors `(steps, width)` to `(batch, tokens, width)`, with zeros elsewhere."""
    return packed.new_zeros(*shape, packed.shape[-1]).index_put((rows, columns), packed)
