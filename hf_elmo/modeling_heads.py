"""Heads over the biLM: the language model, labels for words, labels for sentences."""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .loading import ElmoPreTrainedModel
from .modeling_elmo import ElmoModel
from .modeling_outputs import ElmoForPreTrainingOutput, ElmoModelOutput, ElmoState
from .scalar_mix import ElmoScalarMix

# Rows of the target vocabulary (bilm/data.py, `Vocabulary`; the first lines of its file).
SENTENCE_START_LABEL = 0
SENTENCE_END_LABEL = 1
IGNORED_LABEL = -100  # torch's cross entropy and all of transformers


class ElmoForPreTraining(ElmoPreTrainedModel):
    """The biLM as a language model: one softmax for both directions (Peters et al. 2018, 3.1).

    All weights are trained, whatever `freeze_bilm` says.

    Raises:
        ValueError: If the configuration has no target vocabulary (`vocab_size` 0).
    """

    # The predicted positions are more than the labels that Trainer counts (`</S>` and `<S>`).
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
            labels: Rows of the words in the target vocabulary, shape `(batch, tokens)`; -100 = not
                to be predicted. What stands at padding is not read, and the boundaries are added.
            state: As for `ElmoModel`.
            output_hidden_states: As for `ElmoModel`.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            An `ElmoForPreTrainingOutput`, or its tuple with `return_dict=False`.

        Raises:
            ValueError: As `ElmoModel`, or if the labels have another shape than the words.
        """
        outputs: ElmoModelOutput = self.elmo(
            input_ids,
            attention_mask,
            word_input_ids,
            state=state,
            keep_sentence_boundaries=True,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        framed = cast(Tensor, outputs.attention_mask).bool()  # (batch, tokens + 2)
        targets = None if labels is None else _make_targets(labels, framed)
        top = F.dropout(cast(Tensor, outputs.last_hidden_state), self.config.dropout, self.training)
        forward, *backward = top.split(self.config.projection_size, dim=-1)
        logits = [self.softmax(forward[:, :-1]), *(self.softmax(x[:, 1:]) for x in backward)]
        loss = None
        if targets is not None:
            losses = [
                F.cross_entropy(scores.flatten(0, 1).float(), target.flatten())
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
    """Mark where `<S>` and `</S>` stand among framed words, each of shape `(batch, tokens + 2)`."""
    columns = torch.arange(framed.shape[1], device=framed.device)
    starts = framed.int().argmax(dim=1, keepdim=True)  # the first of the ones
    ends = framed.shape[1] - 1 - framed.flip(1).int().argmax(dim=1, keepdim=True)
    return columns == starts, columns == ends


def _make_targets(labels: Tensor, framed: Tensor) -> tuple[Tensor, Tensor]:
    """Shift the labels to what the forward and the backward rows predict.

    Args:
        labels: Shape `(batch, tokens)`.
        framed: True where there is a word or a boundary, shape `(batch, tokens + 2)`.

    Returns:
        Targets of the forward and of the backward logits, each of shape `(batch, tokens + 1)`.
    """
    expected = (framed.shape[0], framed.shape[1] - 2)
    if labels.shape != expected:
        raise ValueError(f"Expected labels of shape {expected}, got {tuple(labels.shape)}.")
    starts, ends = _find_boundaries(framed)
    words = F.pad(labels, (1, 1)).masked_fill(~framed, IGNORED_LABEL)
    forward = words.masked_fill(starts, IGNORED_LABEL).masked_fill(ends, SENTENCE_END_LABEL)
    backward = words.masked_fill(ends, IGNORED_LABEL).masked_fill(starts, SENTENCE_START_LABEL)
    return forward[:, 1:], backward[:, :-1]


def _strip(hidden_states: tuple[Tensor, ...], framed: Tensor) -> tuple[Tensor, ...]:
    """Take the boundaries' rows away: shape `(batch, tokens + 2, width)` to `tokens`."""
    starts, ends = _find_boundaries(framed)
    boundaries = (starts | ends)[:, 1:-1, None]
    return tuple(layer[:, 1:-1].masked_fill(boundaries, 0.0) for layer in hidden_states)


def run_for_layers(
    elmo: ElmoModel,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    word_input_ids: Tensor | None = None,
    state: ElmoState | None = None,
) -> tuple[tuple[Tensor, ...], ElmoModelOutput]:
    """Run a biLM for all of its layers, without a graph if none of its weights is trained.

    Heads do this, and mix what comes, in two steps: to accelerate, a biLM that is given to another
    module is data, to be moved to that module's device.

    Args:
        elmo: The biLM.
        input_ids: As for `ElmoModel`.
        attention_mask: As for `ElmoModel`.
        word_input_ids: As for `ElmoModel`.
        state: As for `ElmoModel`.

    Returns:
        The layers, each of shape `(batch, tokens, hidden_size)`; and all that the biLM returns.

    Raises:
        ValueError: As `ElmoModel`.
    """
    is_trained = any(parameter.requires_grad for parameter in elmo.parameters())
    with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
        outputs: ElmoModelOutput = elmo(
            input_ids,
            attention_mask,
            word_input_ids,
            state=state,
            output_hidden_states=True,
            return_dict=True,
        )
    return cast(tuple[Tensor, ...], outputs.hidden_states), outputs


class ElmoFeatures(nn.Module):
    """What a task reads of a biLM: mixes of its layers (Peters et al. 2018, 3.2 and 3.3).

    A head holds the biLM as `elmo` and this as `features`. A biLM of which no weight is trained
    keeps no graph. With peft, `modules_to_save=["features"]` trains the mixes beside adapters.

    Args:
        config: Its mix is the initial one, learned or not.
        num_mixes: Mixes side by side; None = as configured (`num_scalar_mixes`).
        dropout: Probability for each mix, in training only; None = as configured
            (`classifier_dropout`).

    Attributes:
        output_size: Width of all mixes side by side.
    """

    def __init__(
        self, config: ElmoConfig, *, num_mixes: int | None = None, dropout: float | None = None
    ) -> None:
        super().__init__()
        num_mixes = config.num_scalar_mixes if num_mixes is None else num_mixes
        self.mix_l2 = config.mix_l2
        self.output_size = num_mixes * cast(int, config.hidden_size)
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
        self,
        elmo: ElmoModel,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        state: ElmoState | None = None,
    ) -> tuple[list[Tensor], ElmoModelOutput]:
        """Run the biLM and mix its layers.

        Where accelerate keeps parts of a model on a disk, call `run_for_layers` and `mix` instead:
        it moves a module that is an argument.

        Args:
            elmo: The biLM.
            input_ids: As for `ElmoModel`.
            attention_mask: As for `ElmoModel`.
            word_input_ids: As for `ElmoModel`.
            state: As for `ElmoModel`.

        Returns:
            Each mix, shape `(batch, tokens, hidden_size)`; and what the biLM returns, with all
            layers.

        Raises:
            ValueError: As `ElmoModel`.
        """
        layers, outputs = run_for_layers(elmo, input_ids, attention_mask, word_input_ids, state)
        return self.mix(layers, outputs.attention_mask), outputs

    def mix(self, layers: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Mix layers that are there already.

        Args:
            layers: Shape `(layers, batch, tokens, hidden_size)`, or a sequence of them.
            mask: 1 where a row is a word, shape `(batch, tokens)`; used by layer norm.

        Returns:
            Each mix, shape `(batch, tokens, hidden_size)`.
        """
        return [mix(layers, mask) for mix in self.scalar_mixes]

    def penalty(self) -> Tensor:
        """Return what a loss needs to keep the mixes near the mean: `mix_l2 * sum ||w||^2`."""
        mixes = cast(Sequence[ElmoScalarMix], self.scalar_mixes)
        return self.mix_l2 * torch.stack([mix.penalty() for mix in mixes]).sum()


def _share(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
    """Return the part of a batch's labels that this call has, where a batch is several calls."""
    if num_items_in_batch is None:
        return 1.0
    return (labels != IGNORED_LABEL).sum() / num_items_in_batch


def _select_layers(
    outputs: ElmoModelOutput, is_wanted: bool | None, config: ElmoConfig
) -> tuple[Tensor, ...] | None:
    """Return the biLM's layers, if wanted by the call or else by the configuration."""
    is_wanted = config.output_hidden_states if is_wanted is None else is_wanted
    return outputs.hidden_states if is_wanted else None


class ElmoForTokenClassification(ElmoPreTrainedModel):
    """A label for every word: linear over the task's mixes (tagging, named entities).

    The biLM is not trained unless the configuration says `freeze_bilm=False`.
    """

    accepts_loss_kwargs = True  # losses are sums over `num_items_in_batch` where Trainer gives it

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config)
        self.features = ElmoFeatures(config)
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
    ) -> TokenClassifierOutput:
        """Score the labels of every word.

        Args:
            input_ids: As for `ElmoModel`.
            attention_mask: As for `ElmoModel`.
            word_input_ids: As for `ElmoModel`.
            labels: The label of each word, shape `(batch, tokens)`; -100 = none, as padding needs.
            state: As for `ElmoModel`.
            output_hidden_states: As for `ElmoModel`.
            num_items_in_batch: Number of labels by which the sum of losses is divided; None = those
                of this call.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            `logits (batch, tokens, num_labels)`; `loss`, the cross entropy, where labels were
            given; `hidden_states` on request. A tuple of them with `return_dict=False`.

        Raises:
            ValueError: As `ElmoModel`.
        """
        layers, outputs = run_for_layers(
            self.elmo, input_ids, attention_mask, word_input_ids, state
        )
        mixes = self.features.mix(layers, outputs.attention_mask)
        logits = self.classifier(torch.cat(mixes, dim=-1))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits, labels, self.config, num_items_in_batch=num_items_in_batch
            )
            loss = loss + self.features.penalty() * _share(labels, num_items_in_batch)
        hidden_states = _select_layers(outputs, output_hidden_states, self.config)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states)


class ElmoForSequenceClassification(ElmoPreTrainedModel):
    """Labels or numbers for every sentence: linear over the mean or maximum of the task's mix.

    The biLM is not trained unless the configuration says `freeze_bilm=False`.
    """

    accepts_loss_kwargs = True  # as of the other classifier

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config)
        self.features = ElmoFeatures(config, dropout=0.0)  # it is for what is pooled
        self.dropout = nn.Dropout(config.classifier_dropout)
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
    ) -> SequenceClassifierOutput:
        """Score the labels of every sentence.

        Args:
            input_ids: As for `ElmoModel`.
            attention_mask: As for `ElmoModel`.
            word_input_ids: As for `ElmoModel`.
            labels: By `config.problem_type`, which the first labels set if it is None:
                `"single_label_classification"`: labels, shape `(batch,)`;
                `"multi_label_classification"`: 0.0 or 1.0, shape `(batch, num_labels)`;
                `"regression"`: numbers, shape `(batch,)` or `(batch, num_labels)`.
            state: As for `ElmoModel`.
            output_hidden_states: As for `ElmoModel`.
            num_items_in_batch: Number of labels by which the sum of losses is divided; None = those
                of this call.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            `logits (batch, num_labels)`; `loss` where labels were given: cross entropy, binary
            cross entropy, or squared error; `hidden_states` on request. A tuple of them with
            `return_dict=False`.

        Raises:
            ValueError: As `ElmoModel`.
        """
        layers, outputs = run_for_layers(
            self.elmo, input_ids, attention_mask, word_input_ids, state
        )
        mixes = self.features.mix(layers, outputs.attention_mask)
        mask = cast(Tensor, outputs.attention_mask).bool()
        pooled = _pool(torch.cat(mixes, dim=-1), mask, self.config.classifier_pooling)
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config)  # a mean over the labels
            loss = (loss + self.features.penalty()) * _share(labels, num_items_in_batch)
        hidden_states = _select_layers(outputs, output_hidden_states, self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states)


def _pool(x: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Reduce each sentence to the mean or maximum of its words, zeros if it has none.

    Args:
        x: Shape `(batch, tokens, width)`.
        mask: True where there is a word, shape `(batch, tokens)`.
        pooling: "mean" or "max".

    Returns:
        Shape `(batch, width)`.
    """
    lengths = mask.sum(dim=1, keepdim=True)
    if pooling == "mean":
        return (x * mask[..., None]).sum(dim=1) / lengths.clamp(min=1)
    x = x.masked_fill(~mask[..., None], -torch.inf)
    x = F.pad(x, (0, 0, 0, 1), value=-torch.inf)  # (batch, tokens + 1, width): never without a row
    return x.amax(dim=1).masked_fill(lengths == 0, 0.0)
