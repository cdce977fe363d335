"""Static vectors in training: only those of the training text are parameters."""

from typing import Any

import torch
from torch import Tensor, nn


class TrainedVectors(nn.Embedding):
    """Replace a model's static vectors in training; train some rows, and keep the others.

    The gradient and the optimiser's state have one row per trained vector, not one per vector of
    the file. The other vectors have no gradient, so the result is the same. `state_dict` has one
    table of all vectors, and `load_state_dict` accepts one. `weight` has only the trained rows.

    Args:
        vectors: All static vectors; row 0 is for padding and for words without a vector.
        rows: The rows to train, in any order.
    """

    table: Tensor
    rows: Tensor
    places: Tensor

    def __init__(self, vectors: nn.Embedding, rows: Tensor) -> None:
        table = vectors.state_dict()["weight"]  # all rows, also of another TrainedVectors
        rows = torch.cat([rows.new_zeros(1), rows]).unique()  # sorted: row 0 is the first
        super().__init__(
            len(rows), vectors.embedding_dim, padding_idx=0, _weight=table[rows].clone()
        )
        places = torch.zeros(len(table), dtype=torch.long)
        places[rows] = torch.arange(len(rows))
        for name, x in (("table", table), ("rows", rows), ("places", places)):
            self.register_buffer(name, x, persistent=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Look up rows of the table of all vectors."""
        places = self.places[input]
        x = super().forward(places)
        kept = (places == 0) & (input != 0)
        return torch.where(kept[..., None], self.table[input], x) if kept.any() else x

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        table = self.table.index_copy(0, self.rows, self.weight.detach())
        destination[f"{prefix}weight"] = table

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        weight = state_dict.get(f"{prefix}weight")
        if weight is not None and weight.shape == self.table.shape:
            self.table.copy_(weight.detach())
            state_dict = state_dict | {f"{prefix}weight": weight[self.rows.to(weight.device)]}
        super()._load_from_state_dict(state_dict, prefix, *args)
