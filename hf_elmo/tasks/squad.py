"""Question answering: bidirectional attention and self-attention (Clark & Gardner 2018)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from .configuration import ElmoTaskConfig
from .layers.attention import BidirectionalAttention, SelfAttention
from .layers.recurrent import VariationalDropout, run_sentences
from .modeling import ElmoTaskModel, Inputs, Words
from .readers import Question, Use, read_questions
from .scores import ANSWERS
from .task import Task


@strict
class ElmoSquadConfig(ElmoTaskConfig):
    """Configuration of a question answering model.

    Args:
        hidden_size: Width of each direction of a biGRU; linear layers are twice as wide.
        dropout: Dropout probability between layers, with one mask per text.
        max_answer_words: Maximum number of words in an answer.
    """

    model_type = "elmo-squad"

    hidden_size: int = 50
    dropout: float | int = 0.2
    max_answer_words: int = 17


class ElmoForSquad(ElmoTaskModel):
    """Find the first and the last word of a question's answer in a passage."""

    config: ElmoSquadConfig
    config_class = ElmoSquadConfig

    def __init__(self, config: ElmoSquadConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.dropout = VariationalDropout(config.dropout)
        self.encoder = _make_gru(config.input_size, size)
        width = 2 * size + config.elmo_output_size
        self.attention = BidirectionalAttention(width)
        self.merge = nn.Linear(4 * width, 2 * size)
        self.residual_encoder = _make_gru(2 * size, size)
        self.self_attention = SelfAttention(2 * size)
        self.residual_merge = nn.Linear(6 * size, 2 * size)
        self.start_encoder = _make_gru(2 * size, size)
        self.start = nn.Linear(2 * size, 1)
        self.end_encoder = _make_gru(4 * size, size)
        self.end = nn.Linear(2 * size, 1)
        self.post_init()

    def set_initial_values(self) -> None:
        """Draw GRU weights from a truncated normal distribution, as in the original code."""
        for layers in (
            self.encoder,
            self.residual_encoder,
            self.start_encoder,
            self.end_encoder,
        ):
            for name, weight in layers.named_parameters():
                if name.startswith("weight"):
                    nn.init.trunc_normal_(weight, std=0.05, a=-0.1, b=0.1)
                else:
                    nn.init.zeros_(weight)

    def compute(
        self,
        inputs: Inputs,
        labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Score each word of a passage as the first and as the last word of the answer.

        Args:
            inputs: The words: two sentences per example, the passage and the question.
            labels: Ignored.
            start_positions: Position of the answer's first word, shape `(batch,)`.
            end_positions: Position of the answer's last word, shape `(batch,)`.
            **kwargs: Ignored.

        Returns:
            `start_logits` and `end_logits (batch, tokens)`; `loss`, the mean cross
            entropy of the first words plus that of the last words plus `penalty()`.
        """
        passage = self.read_words(inputs.map(lambda x: x[:, 0]))
        width = max(1, int(inputs.attention_mask[:, 1].sum(dim=1).max()))  # longest question
        question = self.read_words(inputs.map(lambda x: _cut_words(x[:, 1], width)))
        mask = passage.mask
        x = self.attention(*map(self._encode, (passage, question)), mask, question.mask)
        x = self.merge(x).relu()
        y = self.dropout(run_sentences(self.residual_encoder, self.dropout(x), mask))
        y = self.residual_merge(self.self_attention(y, mask)).relu()
        x = self.dropout(x + y)
        starts = run_sentences(self.start_encoder, x, mask)
        ends = run_sentences(self.end_encoder, torch.cat([x, starts], dim=-1), mask)
        lowest = torch.finfo(x.dtype).min
        start_logits = self.start(starts).squeeze(2).masked_fill(~mask, lowest)
        end_logits = self.end(ends).squeeze(2).masked_fill(~mask, lowest)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = F.cross_entropy(start_logits, start_positions)
            loss = loss + F.cross_entropy(end_logits, end_positions) + self.penalty()
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start_logits, end_logits=end_logits
        )

    def _encode(self, words: Words) -> Tensor:
        h = self.dropout(run_sentences(self.encoder, self.dropout(words.input), words.mask))
        return torch.cat([h, words.output], dim=-1)

    def rank(self, **inputs: Tensor) -> list[tuple[int, int, float]]:
        """Find the first and the last word of each answer, and their probability.

        Args:
            **inputs: As for `forward`, without positions.

        Returns:
            Positions of the first and last word in each passage, and the product of their
            probabilities.
        """
        out = self(**inputs)
        starts, ends = find_best_spans(
            out.start_logits,
            out.end_logits,
            inputs["attention_mask"][:, 0].bool(),
            self.config.max_answer_words,
        )
        likely = out.start_logits.float().softmax(1).gather(1, starts[:, None])
        likely = likely * out.end_logits.float().softmax(1).gather(1, ends[:, None])
        return list(zip(starts.tolist(), ends.tolist(), likely[:, 0].tolist(), strict=True))

    def predict(self, **inputs: Tensor) -> list[tuple[int, int]]:
        """Find the first and the last word of each answer; arguments as for `rank`."""
        return [(start, end) for start, end, _ in self.rank(**inputs)]


@torch.no_grad()
def find_best_spans(
    start_scores: Tensor, end_scores: Tensor, mask: Tensor, max_width: int
) -> tuple[Tensor, Tensor]:
    """Find each text's best span: first and last word have the largest sum of scores.

    Args:
        start_scores: Scores of first words, shape `(batch, tokens)`.
        end_scores: Scores of last words, shape `(batch, tokens)`.
        mask: True at words, shape `(batch, tokens)`; each text has at least one.
        max_width: Largest number of words of a span.

    Returns:
        First and last words of the best spans, each of shape `(batch,)`.
    """
    starts, ends = start_scores.float(), end_scores.float()  # half precision would round sums
    sums = starts[:, :, None] + ends[:, None, :]  # (batch, tokens, tokens)
    is_span = torch.ones_like(sums, dtype=torch.bool).triu().tril(max_width - 1)
    is_span &= mask[:, :, None] & mask[:, None, :]
    best = sums.masked_fill(~is_span, -torch.inf).flatten(1).argmax(dim=1)
    return best // mask.shape[1], best % mask.shape[1]


def _cut_words(x: Tensor, width: int) -> Tensor:
    """Keep the first `width` words: on axis 1, or on axis 2 of the biLM's layers (4 axes)."""
    return x[:, :, :width] if x.dim() == 4 else x[:, :width]


def _make_gru(input_size: int, hidden_size: int) -> nn.GRU:
    return nn.GRU(input_size, hidden_size, batch_first=True, bidirectional=True)


class SquadTask(Task[Question, tuple[int, int]]):
    """Question answering."""

    name = "squad"
    model = ElmoForSquad
    metric = "f1"
    scores = ANSWERS
    has_several_sentences = True

    def read(self, path: Path, use: Use = "score", preset: str = "paper") -> list[Question]:
        """Read SQuAD's JSON."""
        return read_questions(path, use)

    def texts(self, example: Question) -> list[list[str]]:
        return [example.words, example.question]

    def label(self, examples: Sequence[Question], config: ElmoTaskConfig) -> dict[str, Tensor]:
        """Make the positions of the answers' first and last words, each `(batch,)`."""
        spans = torch.tensor([example.span for example in examples])
        return {"start_positions": spans[:, 0], "end_positions": spans[:, 1]}

    def gold(self, example: Question) -> list[str]:
        return example.answers

    def to_gold_form(self, example: Question, found: tuple[int, int]) -> str:
        return example.cut(found)

    def to_json(self, example: Question, found: tuple[int, int]) -> dict[str, Any]:
        return {
            "id": example.name,
            "answer": example.cut(found),
            "start": example.offsets[found[0]][0],
            "end": example.offsets[found[1]][1],
        }
