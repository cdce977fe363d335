"""A linear-chain conditional random field, and a search for the best allowed labels."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ConditionalRandomField(nn.Module):
    """Score sequences of labels (Lafferty et al. 2001; Lample et al. 2016).

    `log p(y | x) = s(x, y) - log sum_y' exp s(x, y')`, where
    `s(x, y) = sum_t scores[t, y_t] + sum_t transitions[y_t, y_t+1]`. As in the tagger of Peters
    et al. (2018), the start and the end of a sentence have no transition scores.

    Args:
        num_labels: Number of labels that a token can have.
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(num_labels, num_labels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial transitions (Glorot & Bengio 2010)."""
        nn.init.xavier_normal_(self.transitions)

    def forward(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Compute the log-likelihood of each sentence's labels.

        Args:
            scores: Score of each label of each token, shape `(batch, tokens, labels)`.
            labels: Gold labels, shape `(batch, tokens)`; values at padding are ignored.
            mask: True at words, shape `(batch, tokens)`.

        Returns:
            Shape `(batch,)`; 0 for a sentence without words.
        """
        scores = _widen(scores)
        path = score_path(scores, labels, self.transitions, mask)
        return path - sum_paths(scores, self.transitions, mask)


def _widen(scores: Tensor) -> Tensor:
    """Convert half precision to float32: it would round sums over a sentence to whole numbers."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def score_path(scores: Tensor, labels: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Add up the scores of each sentence's labels, shape `(batch,)`; arguments as for the CRF."""
    labels = labels.masked_fill(~mask, 0)
    at_tokens = scores.gather(2, labels[..., None]).squeeze(2)
    between = transitions[labels[:, :-1], labels[:, 1:]]  # (batch, tokens - 1)
    zero = scores.new_zeros(())
    return at_tokens.where(mask, zero).sum(dim=1) + between.where(mask[:, 1:], zero).sum(dim=1)


def sum_paths(scores: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Compute `log sum exp` of the scores of all sequences of labels (the forward algorithm).

    Args:
        scores: Shape `(batch, tokens, labels)`.
        transitions: Shape `(labels, labels)`, from the row's label to the column's.
        mask: True at words, shape `(batch, tokens)`.

    Returns:
        Shape `(batch,)`; 0 for a sentence without words.
    """
    if not mask.shape[1]:
        return scores.new_zeros(len(scores))
    sums = scores[:, 0]  # (batch, labels): over all paths that end in a label
    for step in range(1, scores.shape[1]):
        longer = (sums[:, :, None] + transitions).logsumexp(dim=1) + scores[:, step]
        sums = longer.where(mask[:, step, None], sums)
    return sums.logsumexp(dim=1).where(mask[:, 0], scores.new_zeros(()))


def constrain_labels(labels: Sequence[str]) -> Tensor:
    """Find the labels that may follow each label, so that labels form complete spans.

    Args:
        labels: All labels, as `list_labels` lists them; BIOUL if one starts with `U` or `L`.

    Returns:
        True where the column's label may follow the row's, shape `(labels, labels)`. The start
        and the end of a sentence count as `O`.
    """
    has_last = any(label[0] in "UL" for label in labels)

    def may_follow(first: str, second: str) -> bool:
        if second[0] in "OBU":
            return not has_last or first[0] in "OUL"
        return first[0] in "BI" and first[1:] == second[1:]

    return torch.tensor([[may_follow(first, second) for second in labels] for first in labels])


@torch.no_grad()
def find_best_paths(
    scores: Tensor, mask: Tensor, *, transitions: Tensor, allowed: Tensor | None = None
) -> list[list[int]]:
    """Find the best labels of each sentence (Viterbi 1967); ties go to the first label.

    Args:
        scores: Shape `(batch, tokens, labels)`.
        mask: True at words, shape `(batch, tokens)`.
        transitions: Shape `(labels, labels)`, from the row's label to the column's.
        allowed: True where the column's label may follow the row's, shape `(labels, labels)`. A
            label may start a sentence if it may follow label 0, and end one if label 0 may follow
            it. None = all pairs.
    """
    lengths = mask.sum(dim=1).tolist()
    if not mask.shape[1]:
        return [[] for _ in lengths]
    scores = _widen(scores)
    best = scores[:, 0]
    ends = scores.new_zeros(scores.shape[2])
    if allowed is not None:
        best = best.masked_fill(~allowed[0], -torch.inf)
        transitions = transitions.masked_fill(~allowed, -torch.inf)
        ends = ends.masked_fill(~allowed[:, 0], -torch.inf)
    pointers = []  # for each later step, the best label before each label
    for step in range(1, scores.shape[1]):
        longer, pointer = (best[:, :, None] + transitions).max(dim=1)
        best = (longer + scores[:, step]).where(mask[:, step, None], best)
        best = best - best.amax(dim=1, keepdim=True)  # large sums would round differences away
        pointers.append(pointer)
    last = (best + ends).argmax(dim=1).tolist()
    back = torch.stack(pointers, dim=1).tolist() if pointers else [[] for _ in lengths]
    return [_follow(back[row], last[row], length) for row, length in enumerate(lengths)]


def _follow(pointers: list[list[int]], last: int, length: int) -> list[int]:
    """Follow the pointers from a sentence's last label to its first; return all labels."""
    path = [last][:length]
    for step in reversed(range(length - 1)):
        path.append(pointers[step][path[-1]])
    return path[::-1]
