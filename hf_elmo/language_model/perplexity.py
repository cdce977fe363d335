"""Perplexity of held-out text, with bilm-tf's protocol or sentence by sentence."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from hf_elmo.inference.embedding import check_tokenizer
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.text.text_reader import SentenceReader
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .scores import check_softmax, convert_to_perplexity, score_sentences
from .vocabulary import SENTENCE_END, SENTENCE_START, TargetVocabulary
from .window_streams import SentenceStream, WindowCollator, WindowStream
from .windowed_model import WindowedLanguageModel

logger = logging.getLogger(__name__)

LEAST_SHARE = 0.9  # of a text, to be evaluated without a warning
STEPS_AT_ONCE = 32  # time steps per window; the result does not depend on them


@dataclass(frozen=True)
class Perplexity:
    """Perplexities of a text.

    Attributes:
        forward: Perplexity of the forward direction, including predictions of `</S>`.
        backward: Perplexity of the backward direction, including predictions of `<S>`; None if the
            biLM is unidirectional.
        average: `exp` of the mean loss of both directions, as bilm-tf reports it.
        per_word: As `average`, but without the predictions of `</S>` and `<S>`; None = no words.
        num_targets: Number of predictions per direction.
        num_unknown: How many of them were words outside the vocabulary, `<UNK>`.
    """

    forward: float
    backward: float | None
    average: float
    per_word: float | None
    num_targets: int
    num_unknown: int


class LossSum:
    """Sums of losses in nats, in float64 for an exact mean over many words."""

    def __init__(self) -> None:
        self._all: list[float] = [0.0, 0.0]
        self._words: list[float] = [0.0, 0.0]
        self._num_directions = self._num_targets = self._num_words = self._num_unknown = 0

    def add(
        self, losses: Sequence[Tensor], is_word: Sequence[Tensor], num_unknown: int = 0
    ) -> None:
        """Add the losses of each direction; `is_word` is false for `</S>` and `<S>`."""
        self._num_unknown += num_unknown
        self._num_directions = len(losses)
        self._num_targets += losses[0].numel()
        self._num_words += int(is_word[0].sum())
        for direction, (loss, mask) in enumerate(zip(losses, is_word, strict=True)):
            self._all[direction] += float(loss.double().sum())
            self._words[direction] += float(loss[mask].double().sum())

    def perplexity(self) -> Perplexity:
        """Compute perplexities from the sums.

        Raises:
            ValueError: If no losses were added.
        """
        if self._num_targets == 0:
            raise ValueError("Expected sentences to evaluate, got none.")
        forward, backward = (
            convert_to_perplexity(total / self._num_targets) for total in self._all
        )
        share = 1 / self._num_directions
        words = sum(self._words) * share / self._num_words if self._num_words else None
        return Perplexity(
            forward,
            backward if self._num_directions == 2 else None,
            convert_to_perplexity(sum(self._all) * share / self._num_targets),
            None if words is None else convert_to_perplexity(words),
            self._num_targets,
            self._num_unknown,
        )


@torch.inference_mode()
def evaluate_stream(
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    vocabulary: TargetVocabulary,
    text: SentenceReader,
    *,
    batch_size: int,
) -> Perplexity:
    """Compute the perplexity with the protocol of bilm-tf's `test`.

    Parallel rows read one word at a time. At the end of a sentence, a row takes the text's next
    sentence. The LSTM state starts at zero and continues from sentence to sentence. When a row
    finds no sentence, the evaluation ends, and the rest of the other rows is left out. Therefore
    the result depends on the batch size and on the order of the sentences. A warning says if much
    of the text was left out.

    Args:
        model: biLM and softmax; they are set to evaluation mode.
        tokenizer: Tokenizer of the model.
        vocabulary: Target words of the model.
        text: Sentences to predict. Words outside the vocabulary count as `<UNK>`.
        batch_size: Number of parallel rows.

    Returns:
        The perplexities, with the full softmax.

    Raises:
        ValueError: If there are fewer sentences than rows, or the vocabulary or the tokenizer does
            not fit the model.
    """
    check_softmax(vocabulary, model)
    check_tokenizer(model.config, tokenizer)
    num_targets = 0

    def count(order: Random | None) -> Iterator[list[str]]:
        nonlocal num_targets
        for words in text(order):
            num_targets += len(words) + 1
            yield words

    sentences = SentenceStream(count, num_passes=1)
    stream = WindowStream(
        sentences,
        SentenceStream(text, num_passes=1),
        vocabulary,
        num_rows=batch_size,
        window=STEPS_AT_ONCE,
        feed=1,
    )
    runner = WindowedLanguageModel(model).eval()
    sums = LossSum()
    boundaries = torch.tensor(vocabulary.boundary_ids, device=model.device)
    for window in map(WindowCollator(tokenizer), stream):
        batch = {name: tensor.to(model.device) for name, tensor in window.items()}
        losses = [loss for loss in runner(**batch) if loss is not None]
        targets = [batch["forward_targets"], batch["backward_targets"]][: len(losses)]
        num_unknown = int((targets[0] == vocabulary.unknown_id).sum())
        sums.add(losses, [~torch.isin(ids, boundaries) for ids in targets], num_unknown)
    if 0 < sentences.num_taken < batch_size:
        raise ValueError(
            f"Expected a sentence for each of the {batch_size} rows of the batch, got "
            f"{sentences.num_taken}. Use a smaller batch size."
        )
    result = sums.perplexity()
    if result.num_targets < LEAST_SHARE * num_targets:
        logger.warning(
            "%d of %d predictions were evaluated. The protocol of bilm-tf ends as soon as one of "
            "the %d parallel rows finds no sentence. Use a smaller batch size, or a longer text.",
            result.num_targets,
            num_targets,
            batch_size,
        )
    return result


def evaluate_text(
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    vocabulary: TargetVocabulary,
    text: SentenceReader,
) -> Perplexity:
    """Compute the perplexity of a text sentence by sentence, with the full softmax.

    Args:
        model: biLM and softmax, in evaluation mode.
        tokenizer: Tokenizer of the model.
        vocabulary: Target words of the model.
        text: Sentences to predict. Words outside the vocabulary count as `<UNK>`.

    Raises:
        ValueError: If there is no sentence, or the vocabulary or the tokenizer does not fit the
            model.
    """
    sums = LossSum()
    for scores in score_sentences(text(None), model, tokenizer, vocabulary, with_both=False):
        directions = [x for x in (scores.forward, scores.backward) if x is not None]
        is_word = [word not in (SENTENCE_START, SENTENCE_END) for word in scores.words]
        masks = [torch.tensor(x) for x in ([*is_word, False], [False, *is_word])]  # </S>, <S>
        masks = masks[: len(directions)]
        sums.add([-x for x in directions], masks, scores.num_unknown)
    return sums.perplexity()
