"""Probabilities of the words of a sentence, and likely substitutes."""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_elmo.inference.embedding import embed
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.tokenization_batches import check_words
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .losses import full_softmax_losses
from .vocabulary import TargetVocabulary

Direction = Literal["both", "forward", "backward"]
MAX_LOSS = math.log(sys.float_info.max)  # of a biLM that has diverged


class SentenceScores(NamedTuple):
    """Log-probabilities, in nats, of the words of a sentence.

    Attributes:
        words: Words of the sentence.
        forward: Log-probability of each word and of `</S>`, given the words before it, shape
            `(words + 1,)`.
        backward: Log-probability of `<S>` and of each word, given the words after it, shape
            `(words + 1,)`; None if the biLM is unidirectional.
        both: Log-probability of each word given the rest of the sentence, shape `(words,)`. It
            comes from the product of the forward and the backward distribution. None if the biLM is
            unidirectional, or if not requested.
        num_unknown: Number of words that were scored as `<UNK>`.
    """

    words: list[str]
    forward: Tensor
    backward: Tensor | None
    both: Tensor | None
    num_unknown: int = 0

    @property
    def pseudo_perplexity(self) -> float:
        """`exp` of the mean of `-both`, or of `-forward` without `</S>` if `both` is None."""
        words = self.forward[:-1] if self.both is None else self.both
        return convert_to_perplexity(-float(words.double().mean())) if len(words) else math.nan


def convert_to_perplexity(loss: float) -> float:
    """Return `exp` of a loss in nats; infinity if it is too large for a float."""
    return math.inf if loss > MAX_LOSS else math.exp(loss)


class Substitute(NamedTuple):
    """Probable word at a position, with its log-probability in nats."""

    word: str
    log_probability: float


@torch.inference_mode()
def score_sentences(
    sentences: Iterable[Sequence[str]],
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    vocabulary: TargetVocabulary,
    *,
    with_both: bool = True,
) -> Iterator[SentenceScores]:
    """Compute the log-probability of each word of each sentence.

    Each sentence is scored on its own, independent of its batch. Any length is possible.

    Args:
        sentences: Sequences of words.
        model: biLM and softmax, in evaluation mode.
        tokenizer: Tokenizer of the model.
        vocabulary: Target words of the model; other words are scored as `<UNK>`.
        with_both: Whether to compute `SentenceScores.both`, which needs a third softmax.

    Returns:
        An iterator of scores, one per sentence, in order.

    Raises:
        ValueError: If the vocabulary does not have one word for each row of the softmax, or
            consists of pieces and a word is not split into them.
        TypeError: If a sentence is a string, or a word is not a string.
    """
    check_softmax(vocabulary, model)
    softmax = model.softmax
    start, end = vocabulary.boundary_ids
    for words, hidden in _predict(sentences, model, tokenizer):
        if vocabulary.pieces is not None:
            _check_pieces(words, vocabulary)
        ids = vocabulary.convert_words_to_ids(words)
        num_unknown = ids.count(vocabulary.unknown_id)
        targets = torch.tensor([start, *ids, end], device=model.device)
        forward = full_softmax_losses(hidden[0], targets[1:], softmax.weight, softmax.bias)
        if len(hidden) == 1:
            yield SentenceScores(words, -forward, None, None, num_unknown)
            continue
        backward = full_softmax_losses(hidden[1], targets[:-1], softmax.weight, softmax.bias)
        both = None
        if with_both:
            vectors, weight, bias = _join(hidden, softmax)
            both = -full_softmax_losses(vectors, targets[1:-1], weight, bias)
        yield SentenceScores(words, -forward, -backward, both, num_unknown)


@torch.inference_mode()
def find_substitutes(
    words: Sequence[str],
    position: int,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    vocabulary: TargetVocabulary,
    *,
    count: int = 10,
    direction: Direction | None = None,
) -> list[Substitute]:
    """Find the most probable words at a position of a sentence.

    Args:
        words: Words of the sentence.
        position: Position of the word to replace, from 0; the word itself is ignored.
        model: biLM and softmax, in evaluation mode.
        tokenizer: Tokenizer of the model.
        vocabulary: Target words of the model; `<S>`, `</S>` and `<UNK>` are never substitutes.
        count: Number of words to return.
        direction: Context: the words before (`"forward"`), the words after (`"backward"`), or
            `"both"`; None = all directions of the biLM.

    Returns:
        The words, most likely first.

    Raises:
        ValueError: If there are no words, the position or the direction does not exist, the count
            is below 1, or the vocabulary does not have one word for each row of the softmax, or
            consists of pieces.
        TypeError: If the sentence is a string, or a word is not a string.
    """
    if not words:
        raise ValueError("Expected a sentence with words, got none.")
    if not 0 <= position < len(words):
        raise ValueError(f"Expected a position from 0 to {len(words) - 1}, got {position}.")
    if direction not in (None, *get_args(Direction)):
        raise ValueError(f"Expected direction forward, backward or both, got {direction!r}.")
    if count < 1:
        raise ValueError(f"Expected a count of at least 1, got {count}.")
    if vocabulary.pieces is not None:
        raise ValueError("Expected a model that predicts words, got one that predicts pieces.")
    check_softmax(vocabulary, model)
    softmax = model.softmax
    ((_, hidden),) = _predict([words], model, tokenizer)
    direction = direction or ("both" if len(hidden) == 2 else "forward")
    if direction != "forward" and len(hidden) == 1:
        raise ValueError(f"Expected direction forward of a unidirectional biLM, got {direction}.")
    if direction == "both":
        vectors, weight, bias = _join(hidden, softmax)
        vector = vectors[position]
    else:
        weight, bias = softmax.weight, softmax.bias
        vector = hidden[0][position] if direction == "forward" else hidden[1][position + 1]
    scores = F.linear(vector, weight, bias).log_softmax(dim=-1)
    scores[vocabulary.special_ids] = -torch.inf
    values, rows = scores.topk(min(count, len(vocabulary) - len(vocabulary.special_ids)))
    pairs = zip(rows.tolist(), values.tolist(), strict=True)
    return [Substitute(vocabulary.words[row], value) for row, value in pairs]


def check_softmax(vocabulary: TargetVocabulary, model: ElmoForPreTraining) -> None:
    """Refuse a vocabulary without one word for each row of the softmax, and a changed softmax."""
    softmax = model.softmax
    if type(softmax) is not nn.Linear or softmax._forward_hooks or softmax._forward_pre_hooks:
        raise ValueError(
            "Expected a softmax without adapters, hooks and pruning: only its weights are read. "
            "Merge or remove them first."
        )
    if len(vocabulary) != model.config.vocab_size:
        raise ValueError(
            f"Expected a vocabulary of {model.config.vocab_size} words, one for each row of the "
            f"softmax, got {len(vocabulary)}."
        )


def _predict(
    sentences: Iterable[Sequence[str]],
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
) -> Iterator[tuple[list[str], list[Tensor]]]:
    """Yield each sentence and one tensor per direction, shape `(words + 1, projection_size)`.

    Forward vectors predict each word and then `</S>`. Backward vectors predict `<S>` and then each
    word. The forward vector at `<S>` and the backward vector at `</S>` start from a zero state, so
    they are the same for all sentences.
    """
    size = model.config.projection_size
    empty = tokenizer([[]], is_split_into_words=True, return_tensors="pt").to(model.device)
    boundaries = model.elmo(**empty, keep_sentence_boundaries=True).last_hidden_state[0]
    sentences, copies = itertools.tee(_copy(sentences))
    for words, array in zip(copies, embed(sentences, model, tokenizer, layers="top"), strict=True):
        top = torch.from_numpy(array).to(boundaries)  # the softmax has this device and data type
        hidden = [torch.cat([boundaries[:1, :size], top[:, :size]])]
        if model.config.bidirectional:
            hidden.append(torch.cat([top[:, size:], boundaries[1:, size:]]))
        yield words, hidden


def _check_pieces(words: Sequence[str], vocabulary: TargetVocabulary) -> None:
    for word in words:
        if word not in vocabulary:
            raise ValueError(f"Expected pieces, as `vocabulary.read` makes them, got {word!r}.")


def _copy(sentences: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    for number, words in enumerate(sentences):
        check_words(words, number)
        yield list(words)


def _join(hidden: list[Tensor], softmax: nn.Linear) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply the distributions of both directions at each word, by adding their logits.

    Returns:
        Vectors `(words, projection_size)`, weight and bias of the product's logits.
    """
    return hidden[0][:-1] + hidden[1][1:], softmax.weight, 2 * softmax.bias
