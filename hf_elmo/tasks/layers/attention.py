"""Attention between words: similarities, masked softmax, attention layers."""

import torch
from torch import Tensor, nn


class TrilinearSimilarity(nn.Module):
    """Similarity of two words (Seo et al. 2017): `s_ij = w1.x_i + w2.y_j + w3.(x_i * y_j)`.

    Args:
        width: Width of a word's vector.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.empty(width))
        self.column = nn.Parameter(torch.empty(width))
        self.product = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights by Xavier, as for one linear layer over `[x_i; y_j; x_i * y_j]`."""
        bound = (6 / (3 * len(self.row) + 1)) ** 0.5
        for weight in (self.row, self.column, self.product):
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Compare each word of one text with each word of another text.

        Args:
            x: Shape `(batch, rows, width)`.
            y: Shape `(batch, columns, width)`.

        Returns:
            Shape `(batch, rows, columns)`.
        """
        products = (x * self.product) @ y.transpose(1, 2)
        return products + (x @ self.row)[:, :, None] + (y @ self.column)[:, None, :]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute a softmax over the unmasked values of the last axis; zeros if all are masked.

    Args:
        scores: Scores of any shape.
        mask: True where a score counts; its shape broadcasts to the shape of `scores`.

    Returns:
        Probabilities, of the same shape as `scores`.
    """
    # Not -inf: a row without unmasked scores would become NaN, also in its gradient.
    lowest = torch.finfo(scores.dtype).min
    shares = scores.masked_fill(~mask, lowest).softmax(dim=-1)
    return shares.masked_fill(~mask, 0.0)


class BidirectionalAttention(nn.Module):
    """Attention between a passage and a question, both ways (Seo et al. 2017).

    With passage words `x_i`, question words `y_j` and their similarities `s_ij`:
    `a_i = sum_j softmax_j(s_ij) y_j`, `c = sum_i softmax_i(max_j s_ij) x_i`; the result is
    `[x_i; a_i; x_i * a_i; x_i * c]`.

    Args:
        width: Width of a word's vector.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.similarity = TrilinearSimilarity(width)

    def forward(self, x: Tensor, y: Tensor, x_mask: Tensor, y_mask: Tensor) -> Tensor:
        """Concatenate each word of a passage with the attended words, as the formula shows.

        Args:
            x: The passage, shape `(batch, rows, width)`.
            y: The question, shape `(batch, columns, width)`.
            x_mask: True at words, shape `(batch, rows)`.
            y_mask: True at words, shape `(batch, columns)`.

        Returns:
            Shape `(batch, rows, 4 * width)`.
        """
        scores = self.similarity(x, y)
        a = masked_softmax(scores, y_mask[:, None, :]) @ y
        lowest = torch.finfo(scores.dtype).min
        maxima = scores.masked_fill(~y_mask[:, None, :], lowest).amax(dim=2)  # (batch, rows)
        c = masked_softmax(maxima, x_mask)[:, None, :] @ x  # (batch, 1, width)
        return torch.cat([x, a, x * a, x * c], dim=-1)


class SelfAttention(nn.Module):
    """Attention of each word to the other words of a text (Clark & Gardner 2018, their code).

    `a_i = sum_{j != i} exp(s_ij) x_j / (exp(b) + sum_{j != i} exp(s_ij))` with a learned `b` and
    similarities `s_ij` of words `x_i` and `x_j`; the result is `[a_i; x_i; a_i * x_i]`. The term
    `exp(b)` lets a word attend to nothing.

    Args:
        width: Width of a word's vector.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.similarity = TrilinearSimilarity(width)
        self.nothing = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set `b`, the score of nothing, to -1 (docqa/nn/attention.py, `StaticAttentionSelf`)."""
        nn.init.constant_(self.nothing, -1.0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Concatenate each word with the words that it attends to.

        Args:
            x: Shape `(batch, tokens, width)`.
            mask: True at words, shape `(batch, tokens)`.

        Returns:
            Shape `(batch, tokens, 3 * width)`.
        """
        batch, tokens, _ = x.shape
        scores = torch.cat([self.similarity(x, x), self.nothing.expand(batch, tokens, 1)], dim=2)
        others = mask[:, None, :] & ~torch.eye(tokens, dtype=torch.bool, device=x.device)
        is_open = torch.cat([others, others.new_ones(batch, tokens, 1)], dim=2)
        a = masked_softmax(scores, is_open)[:, :, :-1] @ x
        return torch.cat([a, x, a * x], dim=-1)
