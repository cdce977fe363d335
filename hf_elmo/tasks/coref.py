"""Coreference: an end-to-end model of spans (Lee et al. 2017; Peters et al. 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from .configuration import ElmoTaskConfig
from .layers.recurrent import VariationalDropout, run_sentences
from .layers.spans import SpanEncoder, list_spans
from .modeling import ElmoTaskModel, Inputs
from .readers import Document, Use, read_documents
from .scores import CLUSTERS
from .task import Task

DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # first distance of each bucket after the first
SPANS_AT_ONCE = 128  # spans whose pairs are scored at the same time


@strict
class ElmoCorefConfig(ElmoTaskConfig):
    """Configuration of a coreference model.

    Args:
        lstm_size: Width of each direction of the biLSTM, which runs over each sentence.
        hidden_size: Width of the two hidden layers in each scorer (of mentions, of pairs).
        feature_size: Size of the vectors that encode a span's width and a pair's distance.
        max_span_width: Largest number of words of a mention.
        spans_per_word: Number of spans that are kept per word of a document.
        max_antecedents: Maximum number of earlier kept spans to compare a span with.
        max_training_sentences: Maximum number of sentences per training step.
        word_dropout: Dropout probability for the words' vectors.
        dropout: Dropout probability for the biLSTM's output (one mask per sentence) and in scorers.
    """

    model_type = "elmo-coref"

    lstm_size: int = 100
    hidden_size: int = 75
    feature_size: int = 20
    max_span_width: int = 10
    spans_per_word: float | int = 0.4
    max_antecedents: int = 50
    max_training_sentences: int = 50
    word_dropout: float | int = 0.5
    dropout: float | int = 0.2


@dataclass
class ElmoCorefOutput(ModelOutput):
    """Output of `ElmoForCoref` for one document.

    Attributes:
        loss: The negative marginal log-likelihood of gold antecedents, plus `penalty()`; None if
            no gold mentions are given.
        starts: First word of each kept span, shape `(spans,)`, in the document's order.
        ends: Last word of each kept span, shape `(spans,)`.
        logits: Scores of a span's antecedents, shape `(spans, 1 + antecedents)`. Column 0 means no
            antecedent and is always 0. Column k is the kept span that is k places earlier; its
            score is -inf if there is no such span.
    """

    loss: Tensor | None = None
    starts: Tensor | None = None
    ends: Tensor | None = None
    logits: Tensor | None = None


class ElmoForCoref(ElmoTaskModel):
    """Find the coreferent spans of a document, one document at a time."""

    config: ElmoCorefConfig
    config_class = ElmoCorefConfig

    def __init__(self, config: ElmoCorefConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.encoder = nn.LSTM(
            config.input_size, config.lstm_size, batch_first=True, bidirectional=True
        )
        self.context_dropout = VariationalDropout(config.dropout)
        context_size = 2 * config.lstm_size + config.elmo_output_size
        self.spans = SpanEncoder(
            context_size, config.input_size, config.max_span_width, config.feature_size
        )
        self.distances = nn.Embedding(1 + len(DISTANCES), config.feature_size)
        span_size = self.spans.output_size
        self.mention_input = nn.Linear(span_size, size)
        self.mention_output = self._make_output(size)
        self.span_input = nn.Linear(span_size, size)
        self.antecedent_input = nn.Linear(span_size, size, bias=False)
        self.product_input = nn.Linear(span_size, size, bias=False)
        self.distance_input = nn.Linear(config.feature_size, size, bias=False)
        self.pair_output = self._make_output(size)
        self.post_init()

    def _make_output(self, size: int) -> nn.Sequential:
        """Make the layers of a scorer after its first linear layer."""
        dropout = self.config.dropout
        return nn.Sequential(
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(size, size),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(size, 1),
        )

    def compute(
        self,
        inputs: Inputs,
        labels: Tensor | None = None,
        mentions: Tensor | None = None,
        **kwargs: Any,
    ) -> ElmoCorefOutput:
        """Choose the spans of a document that may be mentions; score their antecedents.

        In training, only `max_training_sentences` consecutive sentences of a longer document are
        read. The first of these sentences is random.

        Args:
            inputs: The words of the sentences of one document.
            labels: Ignored.
            mentions: First word, last word and cluster number of each gold mention, shape
                `(1, mentions, 3)`; words are counted from the start of the document.
            **kwargs: Ignored.

        Returns:
            The kept spans and the scores of their antecedents.

        Raises:
            ValueError: If the batch is not one document.
        """
        mask = inputs.attention_mask
        if len(mask) != 1:
            raise ValueError("Expected one document, an attention_mask of (1, sentences, tokens).")
        most = self.config.max_training_sentences
        if self.training and mask.shape[1] > most:
            first = int(torch.randint(mask.shape[1] - most + 1, ()))
            inputs = inputs.map(lambda x: x[:, first : first + most])
            if mentions is not None:
                num_before = mask[0, :first].sum()
                mentions = mentions - num_before * mentions.new_tensor([1, 1, 0])
        words = self.read_words(inputs.map(lambda x: x[0]))
        x = F.dropout(words.input, self.config.word_dropout, self.training)
        h = self.context_dropout(run_sentences(self.encoder, x, words.mask))
        context = torch.cat([h, words.output], dim=-1)[words.mask]  # (tokens, context_size)
        sentences = words.mask.nonzero()[:, 0]
        starts, ends, mention_scores = self._choose_spans(context, x[words.mask], sentences)
        spans = self.spans(context, x[words.mask], starts, ends)
        logits = self._score_antecedents(spans, mention_scores)
        loss = None
        if mentions is not None:
            clusters = find_clusters(starts, ends, mentions[0])
            loss = compute_loss(logits, clusters) + self.penalty()
        return ElmoCorefOutput(loss=loss, starts=starts, ends=ends, logits=logits)

    def _choose_spans(
        self, context: Tensor, words: Tensor, sentences: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score all spans as mentions; return first words, last words and scores of the best."""
        starts, ends = list_spans(sentences, self.config.max_span_width)
        hidden = self.spans.project_all(context, words, self.mention_input)
        scores = self.mention_output(hidden[starts, ends - starts]).squeeze(1)
        num_kept = max(1, int(self.config.spans_per_word * len(sentences)))
        kept = prune_spans(starts, ends, scores.detach(), num_kept)
        return starts[kept], ends[kept], scores[kept]

    def _score_antecedents(self, spans: Tensor, mention_scores: Tensor) -> Tensor:
        """Score pairs: `s(i, j) = m_i + m_j + w.f([g_i; g_j; g_i * g_j; distance])`.

        `m` is a mention score, `g` a span's vector, f a feed-forward network, w its output layer.
        The first layer of f is split by the four parts of its input. Only the part for `g_i * g_j`
        is computed for each pair.
        """
        count = min(self.config.max_antecedents, max(len(spans) - 1, 0))
        steps = torch.arange(1, count + 1, device=spans.device)
        distances = self.distance_input(self.distances(bucket_distances(steps)))
        one, other = self.span_input(spans), self.antecedent_input(spans)
        rows = []
        for first in range(0, len(spans), SPANS_AT_ONCE):
            places = torch.arange(
                first, min(first + SPANS_AT_ONCE, len(spans)), device=steps.device
            )
            before = places[:, None] - steps  # (spans, antecedents)
            j = before.clamp(min=0)
            hidden = self.product_input(spans[places][:, None] * spans[j])
            hidden = hidden + one[places][:, None] + other[j] + distances
            scores = self.pair_output(hidden).squeeze(2)
            scores = scores + mention_scores[places][:, None] + mention_scores[j]
            rows.append(scores.masked_fill(before < 0, -torch.inf))
        return F.pad(torch.cat(rows), (1, 0)) if rows else spans.new_zeros(0, 1)

    def predict(self, **inputs: Tensor) -> list[list[list[tuple[int, int]]]]:
        """Find the clusters of a document; inputs as for `forward`, without mentions.

        Returns:
            A list with one element, the document's clusters. A mention is its first and last word,
            counted from the start of the document.
        """
        out = self(**inputs)
        best = out.logits.argmax(dim=1).tolist()
        mentions = list(zip(out.starts.tolist(), out.ends.tolist(), strict=True))
        return [link_mentions(mentions, best)]


def prune_spans(starts: Tensor, ends: Tensor, scores: Tensor, num_kept: int) -> Tensor:
    """Keep the best spans that do not cross, in the order of the document (Lee et al. 2017).

    Spans cross if they overlap and neither contains the other.

    Args:
        starts: First word of each span, shape `(spans,)`.
        ends: Last word of each span, shape `(spans,)`.
        scores: Mention score of each span, shape `(spans,)`.
        num_kept: Maximum number of spans to keep.

    Returns:
        Indices of the kept spans, shape `(kept,)`.
    """
    longest: dict[int, int] = {}  # last word of the longest kept span with this first word
    earliest: dict[int, int] = {}  # first word of the longest kept span with this last word
    kept: list[int] = []
    bounds = list(zip(starts.tolist(), ends.tolist(), strict=True))
    for span in scores.argsort(descending=True, stable=True).tolist():
        if len(kept) == num_kept:
            break
        start, end = bounds[span]
        if any(longest.get(word, 0) > end for word in range(start + 1, end + 1)):
            continue
        if any(earliest.get(word, start) < start for word in range(start, end)):
            continue
        kept.append(span)
        longest[start] = max(end, longest.get(start, end))
        earliest[end] = min(start, earliest.get(end, start))
    return torch.tensor(sorted(kept, key=bounds.__getitem__), dtype=torch.long).to(starts.device)


def bucket_distances(steps: Tensor) -> Tensor:
    """Put distances in ten buckets: 0, 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more."""
    return torch.bucketize(steps, steps.new_tensor(DISTANCES), right=True)


def find_clusters(starts: Tensor, ends: Tensor, mentions: Tensor) -> Tensor:
    """Find the cluster of each span; -1 = not a mention; `mentions` has shape `(mentions, 3)`."""
    clusters = {(start, end): cluster for start, end, cluster in mentions.tolist()}
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return torch.tensor([clusters.get(pair, -1) for pair in pairs], device=starts.device).long()


def compute_loss(logits: Tensor, clusters: Tensor) -> Tensor:
    """Compute `-sum_i log sum_j p_i(j)` over the correct antecedents j of each span i.

    `p_i` is the softmax of row i. Column 0 is correct if i is not a mention or has no antecedent.

    Args:
        logits: Scores of the antecedents, as in `ElmoCorefOutput`.
        clusters: Cluster of each span; -1 = not a mention; shape `(spans,)`.
    """
    before = torch.arange(len(clusters), device=clusters.device)[:, None] - torch.arange(
        1, logits.shape[1], device=clusters.device
    )
    is_right = (clusters[before.clamp(min=0)] == clusters[:, None]) & (before >= 0)
    is_right &= clusters[:, None] >= 0
    is_right = torch.cat([~is_right.any(dim=1, keepdim=True), is_right], dim=1)
    right = logits.masked_fill(~is_right, -torch.inf).logsumexp(dim=1)
    return (logits.logsumexp(dim=1) - right).sum()


def link_mentions(
    mentions: Sequence[tuple[int, int]], best: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """Group linked mentions; `best` is each mention's distance to its antecedent, 0 = none."""
    clusters: dict[int, list[tuple[int, int]]] = {}  # the cluster of each mention, by index
    for row, back in enumerate(best):
        if back:
            clusters[row] = clusters.setdefault(row - back, [mentions[row - back]])
            clusters[row].append(mentions[row])
    return list({id(cluster): cluster for cluster in clusters.values()}.values())


class CorefTask(Task[Document, list[list[tuple[int, int]]]]):
    """Coreference resolution."""

    name = "coref"
    model = ElmoForCoref
    metric = "conll"
    scores = CLUSTERS
    has_several_sentences = True
    needs_batch_size_one = True

    def read(self, path: Path, use: Use = "score", preset: str = "paper") -> list[Document]:
        """Read OntoNotes columns."""
        return read_documents(path)

    def texts(self, example: Document) -> list[list[str]]:
        return example.sentences

    def label(self, examples: Sequence[Document], config: ElmoTaskConfig) -> dict[str, Tensor]:
        """Make a tensor of a document's mentions, shape `(1, mentions, 3)`."""
        rows = [
            [start, end, number]
            for number, cluster in enumerate(examples[0].clusters)
            for start, end in cluster
        ]
        return {"mentions": torch.tensor(rows, dtype=torch.long).view(1, -1, 3)}

    def gold(self, example: Document) -> list[list[tuple[int, int]]]:
        return example.clusters

    def to_json(self, example: Document, found: list[list[tuple[int, int]]]) -> dict[str, Any]:
        return {"name": example.name, "sentences": example.sentences, "clusters": found}
