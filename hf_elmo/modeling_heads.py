"""Heads over the biLM: language model, classifier of words, classifier of sentences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from .bilm import refuse_packed
from .configuration_elmo import ElmoConfig
from .loading import ElmoPreTrainedModel
from .modeling_elmo import ElmoModel
from .modeling_outputs import ElmoForPreTrainingOutput, ElmoModelOutput, ElmoState
from .scalar_mix import ElmoScalarMix

if TYPE_CHECKING:  # so transformers saves this module with a model that was loaded as remote code
    from .pipelines_elmo import ElmoTokenClassificationPipeline  # noqa: F401

IGNORED_LABEL = -100  # as in PyTorch's cross entropy and in transformers


class ElmoForPreTraining(ElmoPreTrainedModel):
    """The biLM as a language model: one softmax for both directions (Peters et al. 2018, 3.1).

    All weights are trained; `freeze_bilm` has no effect.

    Raises:
        ValueError: If the configuration has no target vocabulary (`vocab_size` 0).
    """

    # Trainer counts labels, but the model also predicts `</S>` and `<S>`, which have no label.
    accepts_loss_kwargs = False

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if config.vocab_size == 0:
            raise ValueError(
                "Expected a vocab_size above 0, the number of target words; the configuration has "
                "none. Load a biLM without its softmax as ElmoModel."
            )
        self.elmo = ElmoModel(config)
        self.softmax = nn.Linear(config.projection_size, config.vocab_size)
        self.post_init()

    def set_initial_values(self) -> None:
        """Draw the weights of the softmax."""
        initialization.normal_(self.softmax.weight, std=self.softmax.in_features**-0.5)
        initialization.zeros_(self.softmax.bias)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        state: ElmoState | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> ElmoForPreTrainingOutput:
        """Predict each word from the words before it, and from the words after it.

        Args:
            input_ids: As for `ElmoModel`.
            attention_mask: As for `ElmoModel`.
            word_input_ids: As for `ElmoModel`.
            labels: Rows of the words in the target vocabulary, shape `(batch, tokens)`; -100 = no
                target. Values at padding are ignored. The model adds the targets `<S>` and `</S>`.
            state: As for `ElmoModel`.
            output_hidden_states: As for `ElmoModel`.
            **kwargs: Ignored (transformers passes extra arguments).

        Returns:
            An `ElmoForPreTrainingOutput`, or its tuple with `return_dict=False`.

        Raises:
            ValueError: As `ElmoModel`, or if the labels have another shape than the words, or the
                mask has a 0 between two words with labels given.
        """
        refuse_packed(kwargs)
        outputs: ElmoModelOutput = self.elmo(
            input_ids,
            attention_mask,
            word_input_ids,
            state=state,
            keep_sentence_boundaries=True,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        framed = outputs.attention_mask.bool()  # (batch, tokens + 2)
        targets = None if labels is None else _make_targets(labels, framed, self.config)
        top = F.dropout(outputs.last_hidden_state, self.config.dropout, self.training)
        forward, *backward = top.split(self.config.projection_size, dim=-1)
        logits = [self.softmax(forward[:, :-1]), *(self.softmax(x[:, 1:]) for x in backward)]
        loss = None
        if targets is not None:
            dtype = torch.promote_types(top.dtype, torch.float32)
            losses = [
                F.cross_entropy(scores.flatten(0, 1).to(dtype), target.flatten())
                for scores, target in zip(logits, targets[: len(logits)], strict=True)
            ]
            loss = torch.stack(losses).mean()
        return ElmoForPreTrainingOutput(
            loss=loss,
            forward_logits=logits[0],
            backward_logits=logits[1] if backward else None,
            hidden_states=outputs.hidden_states and _strip(outputs.hidden_states, framed),
            state=outputs.state,
        )


def _find_boundaries(framed: Tensor) -> tuple[Tensor, Tensor]:
    """Return masks of the positions of `<S>` and `</S>`, each of shape `(batch, tokens + 2)`."""
    columns = torch.arange(framed.shape[1], device=framed.device)
    starts = framed.int().argmax(dim=1, keepdim=True)  # index of the first 1
    ends = framed.shape[1] - 1 - framed.flip(1).int().argmax(dim=1, keepdim=True)
    return columns == starts, columns == ends


def _make_targets(labels: Tensor, framed: Tensor, config: ElmoConfig) -> tuple[Tensor, Tensor]:
    """Make the targets of both directions from the labels.

    Args:
        labels: Target words, shape `(batch, tokens)`.
        framed: True where there is a word or a boundary, shape `(batch, tokens + 2)`.
        config: Has the rows of `<S>` and `</S>`.

    Returns:
        Targets of the forward and of the backward logits, each of shape `(batch, tokens + 1)`.
    """
    expected = (framed.shape[0], framed.shape[1] - 2)
    _check_shape(labels, expected)
    starts, ends = _find_boundaries(framed)
    if (ends.int().argmax(dim=1) - starts.int().argmax(dim=1) >= framed.sum(dim=1)).any():
        raise ValueError(
            "Expected an attention_mask without a 0 between two words where labels are given."
        )
    words = F.pad(labels, (1, 1)).masked_fill(~framed, IGNORED_LABEL)
    start, end = config.sentence_start_target_id, config.sentence_end_target_id
    forward = words.masked_fill(starts, IGNORED_LABEL).masked_fill(ends, end)
    backward = words.masked_fill(ends, IGNORED_LABEL).masked_fill(starts, start)
    return forward[:, 1:], backward[:, :-1]


def _check_shape(labels: Tensor, expected: Sequence[int]) -> None:
    if labels.shape != tuple(expected):
        raise ValueError(f"Expected labels of shape {tuple(expected)}, got {tuple(labels.shape)}.")


def _strip(hidden_states: tuple[Tensor, ...], framed: Tensor) -> tuple[Tensor, ...]:
    """Remove boundaries from layers: `(batch, tokens + 2, width)` to `(batch, tokens, width)`."""
    starts, ends = _find_boundaries(framed)
    boundaries = (starts | ends)[:, 1:-1, None]
    return tuple(layer[:, 1:-1].masked_fill(boundaries, 0.0) for layer in hidden_states)


def run_for_layers(
    elmo: ElmoModel, *inputs: Any, **options: Any
) -> tuple[tuple[Tensor, ...], ElmoModelOutput]:
    """Run a biLM and return all its layers, without a gradient graph if no weight is trained.

    Heads call this function and then mix the layers. The mix must not call the biLM, because the
    library accelerate would then move the biLM to the device of the mix.

    Args:
        elmo: The biLM.
        *inputs: As for `ElmoModel`.
        **options: As for `ElmoModel`.

    Returns:
        The layers, each of shape `(batch, tokens, hidden_size)`; and the output of the biLM.

    Raises:
        ValueError: As `ElmoModel`.
    """
    is_trained = any(parameter.requires_grad for parameter in elmo.parameters())
    with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
        outputs: ElmoModelOutput = elmo(
            *inputs, **options, output_hidden_states=True, return_dict=True
        )
    return cast(tuple[Tensor, ...], outputs.hidden_states), outputs


class ElmoFeatures(nn.Module):
    """Mixes of a biLM's layers for a task (Peters et al. 2018, 3.2 and 3.3).

    A head has the biLM as its attribute `elmo` and this module as `features`. If no weight of the
    biLM is trained, the biLM runs without a gradient graph. With peft, adapters and mixes are
    trained together if `modules_to_save=["features"]`.

    Args:
        config: All mixes start from the configured mix; `train_mix` says whether they are trained.
        num_mixes: Number of mixes; None = `num_scalar_mixes` of the configuration.
        dropout: Dropout probability of each mix; None = `classifier_dropout` of the configuration.

    Attributes:
        output_size: Sum of the widths of all mixes.
    """

    def __init__(
        self, config: ElmoConfig, *, num_mixes: int | None = None, dropout: float | None = None
    ) -> None:
        super().__init__()
        num_mixes = config.num_scalar_mixes if num_mixes is None else num_mixes
        self.mix_l2 = config.mix_l2
        self.output_size = num_mixes * config.output_size
        self.scalar_mixes = nn.ModuleList(
            ElmoScalarMix(
                config.num_mixed_layers,
                weights=config.initial_mix_weights,
                gamma=config.mix_gamma,
                layer_norm=config.mix_layer_norm,
                dropout=config.classifier_dropout if dropout is None else dropout,
                train_weights=config.train_mix,
                train_gamma=config.train_mix,
            )
            for _ in range(num_mixes)
        )

    def forward(
        self, elmo: ElmoModel, *inputs: Any, **options: Any
    ) -> tuple[list[Tensor], ElmoModelOutput]:
        """Run the biLM and mix its layers.

        If the library accelerate offloads parts of the model to a disk, call `run_for_layers` and
        `mix` instead, because accelerate would move the argument `elmo` to another device.

        Args:
            elmo: The biLM.
            *inputs: As for `ElmoModel`.
            **options: As for `ElmoModel`.

        Returns:
            The mixes, each of shape `(batch, tokens, hidden_size)`; and the output of the biLM,
            with all layers.

        Raises:
            ValueError: As `ElmoModel`.
        """
        layers, outputs = run_for_layers(elmo, *inputs, **options)
        return self.mix(layers, outputs.attention_mask), outputs

    def mix(self, layers: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Mix layers that are already computed.

        Args:
            layers: Shape `(layers, batch, tokens, hidden_size)`, or a sequence of layers.
            mask: 1 where a row is a word, shape `(batch, tokens)`; used by layer norm.

        Returns:
            The mixes, each of shape `(batch, tokens, hidden_size)`.
        """
        return [mix(layers, mask) for mix in self.scalar_mixes]

    def penalty(self) -> Tensor:
        """Return `mix_l2 * sum ||w||^2` over the mix weights w; it keeps mixes near the mean."""
        mixes = cast(Sequence[ElmoScalarMix], self.scalar_mixes)
        return self.mix_l2 * torch.stack([mix.penalty() for mix in mixes]).sum()


def pool_words(x: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Reduce each sentence to the mean or maximum of its words; without words, to zeros.

    Args:
        x: Shape `(batch, tokens, width)`.
        mask: True where there is a word, shape `(batch, tokens)`.
        pooling: "mean" or "max".

    Returns:
        Shape `(batch, width)`.
    """
    is_word = mask[..., None]
    if pooling == "mean":
        dtype = torch.promote_types(x.dtype, torch.float32)  # sums in float16 overflow
        total = x.masked_fill(~is_word, 0.0).sum(dim=1, dtype=dtype)
        return (total / is_word.sum(dim=1).clamp(min=1)).to(x.dtype)
    if not x.shape[1]:
        return x.new_zeros(len(x), x.shape[2])
    largest = x.masked_fill(~is_word, -torch.inf).amax(dim=1)
    return largest.masked_fill(~is_word.any(dim=1), 0.0)


class ElmoClassifier(ElmoPreTrainedModel):
    """Base class of both classifiers: a linear layer computes label scores from the task's mixes.

    Args:
        config: The configuration.
        mix_dropout: Dropout probability of each mix; None = `classifier_dropout`.
    """

    accepts_loss_kwargs = True  # Trainer passes `num_items_in_batch`, which divides the loss
    output_class: type[TokenClassifierOutput | SequenceClassifierOutput]

    def __init__(self, config: ElmoConfig, *, mix_dropout: float | None = None) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config)
        self.features = ElmoFeatures(config, dropout=mix_dropout)
        self.classifier = nn.Linear(self.features.output_size, cast(int, config.num_labels))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        state: ElmoState | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput | SequenceClassifierOutput:
        """Score the labels of every word, or of every sentence.

        Args:
            input_ids: As for `ElmoModel`.
            attention_mask: As for `ElmoModel`.
            word_input_ids: As for `ElmoModel`.
            labels: See the class.
            state: As for `ElmoModel`.
            output_hidden_states: As for `ElmoModel`.
            num_items_in_batch: Divisor of the sum of losses, the number of labels in the complete
                batch; None = the number of labels in this call.
            **kwargs: Ignored (transformers passes extra arguments).

        Returns:
            `logits (batch, tokens, num_labels)`, or `(batch, num_labels)` for sentences; `loss`
            if labels are given; `hidden_states` on request. A tuple of them with
            `return_dict=False`.

        Raises:
            ValueError: As `ElmoModel`, or if the labels of words have another shape than the words.
        """
        refuse_packed(kwargs)
        layers, outputs = run_for_layers(
            self.elmo, input_ids, attention_mask, word_input_ids, state
        )
        mask = outputs.attention_mask
        logits = self.compute_logits(torch.cat(self.features.mix(layers, mask), dim=-1), mask)
        loss = None
        if labels is not None:
            loss = self.compute_loss(logits, labels, num_items_in_batch)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden_states = outputs.hidden_states if output_hidden_states else None
        return self.output_class(loss=loss, logits=logits, hidden_states=hidden_states)

    def compute_logits(self, x: Tensor, mask: Tensor) -> Tensor:
        """Score the labels of each word, given the mixes, shape `(batch, tokens, output_size)`."""
        return self.classifier(x)

    def compute_loss(
        self, logits: Tensor, labels: Tensor, num_items: Tensor | int | None
    ) -> Tensor:
        """Compute the loss of one call.

        `num_items` is the number of labels of the complete batch, if this call has only a part of
        the batch; None = this call has the complete batch.
        """
        raise NotImplementedError


def _share(labels: Tensor, num_items: Tensor | int | None) -> Tensor | float:
    """Return this call's share of the labels of a complete batch; 1 without `num_items`."""
    return 1.0 if num_items is None else (labels != IGNORED_LABEL).sum() / num_items


class ElmoForTokenClassification(ElmoClassifier):
    """Classifier of words: a linear layer over the task's mixes (tagging, named entities).

    The biLM is trained only if the configuration has `freeze_bilm=False`. `labels` of `forward`
    have the shape `(batch, tokens)`; -100 = no label, as at padding. The loss is the cross entropy.
    """

    output_class = TokenClassifierOutput

    def compute_loss(
        self, logits: Tensor, labels: Tensor, num_items: Tensor | int | None
    ) -> Tensor:
        """Compute the cross entropies' sum / `num_items`, plus this call's share of the penalty."""
        _check_shape(labels, logits.shape[:-1])
        if (labels == IGNORED_LABEL).all():
            return logits.sum() * 0.0  # a mean over no labels is NaN
        loss = self.loss_function(logits, labels, self.config, num_items_in_batch=num_items)
        return loss + self.features.penalty() * _share(labels, num_items)


class ElmoForSequenceClassification(ElmoClassifier):
    """Classifier or regressor of sentences: a linear layer over pooled mixes (mean or maximum).

    The biLM is trained only if the configuration has `freeze_bilm=False`. `config.problem_type`
    determines `labels` of `forward` and the loss. If it is None, the first labels determine it.

    - `"single_label_classification"`: label ids, shape `(batch,)`, -100 = no label; cross entropy.
    - `"multi_label_classification"`: 0.0 or 1.0, shape `(batch, num_labels)`; binary cross entropy.
    - `"regression"`: values, shape `(batch,)` or `(batch, num_labels)`; squared error. Trainer
      counts a value of exactly -100 as "no label", so use another unit if there are such values.
    """

    output_class = SequenceClassifierOutput

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config, mix_dropout=0.0)  # the pooled vectors have dropout
        self.dropout = nn.Dropout(config.classifier_dropout)

    def compute_logits(self, x: Tensor, mask: Tensor) -> Tensor:
        """Score the labels of each sentence, given the mixes of its words."""
        pooled = pool_words(x, mask.bool(), self.config.classifier_pooling)
        return self.classifier(self.dropout(pooled))

    def compute_loss(
        self, logits: Tensor, labels: Tensor, num_items: Tensor | int | None
    ) -> Tensor:
        """Compute the mean loss plus the penalty; multiply both by this call's share of labels."""
        if not labels.is_floating_point() and (labels == IGNORED_LABEL).all():
            return logits.sum() * 0.0  # a mean over no labels is NaN
        loss = self.loss_function(labels, logits, self.config)
        return (loss + self.features.penalty()) * _share(labels, num_items)
