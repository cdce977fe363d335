"""Spans of words and their vectors."""

import torch
from torch import Tensor, nn


class SpanEncoder(nn.Module):
    """The vector of a span of words (Lee et al. 2017, section 4.2).

    `g = [h_first; h_last; sum_t a_t x_t; width]`, where `h` are word vectors after the encoder, `x`
    before it, and `a_t = softmax_t(w.h_t + b)` over the span's words.

    Args:
        context_size: Width of `h`.
        word_size: Width of `x`.
        max_width: Largest number of words of a span.
        width_size: Size of the vector `width`, which encodes how many words a span has.
    """

    def __init__(self, context_size: int, word_size: int, max_width: int, width_size: int) -> None:
        super().__init__()
        self.sizes = [context_size, context_size, word_size, width_size]
        self.head = nn.Linear(context_size, 1)
        self.widths = nn.Embedding(max_width, width_size)

    @property
    def output_size(self) -> int:
        """Width of a span's vector."""
        return sum(self.sizes)

    def forward(self, context: Tensor, words: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Encode some spans of a document.

        Args:
            context: `h`, shape `(tokens, context_size)`.
            words: `x`, shape `(tokens, word_size)`.
            starts: First word of each span, shape `(spans,)`.
            ends: Last word of each span, shape `(spans,)`.

        Returns:
            Shape `(spans, output_size)`.
        """
        places = starts[:, None] + torch.arange(len(self.widths.weight), device=starts.device)
        is_inside = places <= ends[:, None]  # (spans, max_width)
        places = places.where(is_inside, starts[:, None])
        scores = self.head(context).squeeze(1)[places].masked_fill(~is_inside, -torch.inf)
        heads = torch.einsum("sw,swd->sd", scores.softmax(dim=1), words[places])
        return torch.cat([context[starts], context[ends], heads, self.widths(ends - starts)], dim=1)

    def project_all(self, context: Tensor, words: Tensor, linear: nn.Linear) -> Tensor:
        """Compute `linear(g)` of every span of a document, without making any `g`.

        The product is the sum of four parts, one for each part of `g`. If a span has the weighted
        mean `m`, the span with one more word `x` has `m + sigmoid(s - L) (x - m)`. `s` is the score
        of `x`, and `L` is `log sum exp` of the scores of the other words.

        Args:
            context: `h`, shape `(tokens, context_size)`.
            words: `x`, shape `(tokens, word_size)`.
            linear: A layer that reads a span's vector.

        Returns:
            Shape `(tokens, max_width, linear.out_features)`: rows are first words, and
            column k has spans of k + 1 words. Entries past the document's end are undefined.
        """
        first, last, head, width = linear.weight.split(self.sizes, dim=1)
        tokens, max_width = len(context), len(self.widths.weight)
        scores = self.head(context)  # (tokens, 1)
        projected, ends = words @ head.T, context @ last.T
        attended, sums = projected, scores
        columns = [attended + ends]
        for extra in range(1, min(max_width, tokens)):
            share = (scores[extra:] - sums[:-1]).sigmoid()
            attended = torch.lerp(attended[:-1], projected[extra:], share)
            sums = torch.logaddexp(sums[:-1], scores[extra:])
            columns.append(attended + ends[extra:])
        padded = [nn.functional.pad(x, (0, 0, 0, tokens - len(x))) for x in columns]
        padded += [torch.zeros_like(ends)] * (max_width - len(padded))
        starts = context @ first.T + linear.bias
        return torch.stack(padded, dim=1) + starts[:, None] + self.widths.weight @ width.T


def list_spans(sentences: Tensor, max_width: int) -> tuple[Tensor, Tensor]:
    """List all spans that do not cross a sentence boundary, by their first and last words.

    Args:
        sentences: Index of each word's sentence, shape `(tokens,)`.
        max_width: Largest number of words of a span.

    Returns:
        Starts and ends, each of shape `(spans,)`.
    """
    starts = torch.arange(len(sentences), device=sentences.device).repeat_interleave(max_width)
    ends = starts + torch.arange(max_width, device=sentences.device).repeat(len(sentences))
    inside = ends.clamp(max=max(len(sentences) - 1, 0))
    is_span = (ends == inside) & (sentences[starts] == sentences[inside])
    return starts[is_span], ends[is_span]
