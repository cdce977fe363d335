"""Base of all task models: makes word vectors from ELMo, static vectors and characters."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput, can_return_tuple

from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.lstm import ElmoLstm
from hf_elmo.model_card import CARD_FILE
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.modeling_heads import ElmoFeatures, run_for_layers

from .card import make_task_card
from .configuration import ElmoTaskConfig


class Inputs(NamedTuple):
    """The words of a batch: arguments of `ElmoTaskModel.forward`."""

    attention_mask: Tensor
    input_ids: Tensor | None
    word_input_ids: Tensor | None
    elmo_layers: Tensor | None
    static_ids: Tensor | None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        """Apply a function to each tensor, such as a selection of rows."""
        return Inputs(
            change(self.attention_mask), *(None if x is None else change(x) for x in self[1:])
        )


class Words(NamedTuple):
    """Word vectors of a batch, as the layers of a task read them.

    Attributes:
        input: Input of the task's encoder, shape `(batch, tokens, input_size)`.
        output: Vectors to concatenate with the encoder's output, shape
            `(batch, tokens, elmo_output_size)`.
        mask: True at words, shape `(batch, tokens)`.
    """

    input: Tensor
    output: Tensor
    mask: Tensor


class CharacterEncoder(nn.Module):
    """Word vectors: maxima over positions of `relu(convolution(characters))` (Kim et al. 2015).

    Args:
        config: Configuration of the task model.
    """

    def __init__(self, config: ElmoTaskConfig) -> None:
        super().__init__()
        self.max_chars = config.max_chars
        self.dropout = nn.Dropout(config.char_dropout)
        self.embedding = nn.Embedding(config.bilm.char_vocab_size, config.char_size, padding_idx=0)
        self.convolution = nn.Conv1d(
            config.char_size, config.num_char_filters, config.char_filter_width
        )

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Encode the words; each distinct word is computed once.

        Args:
            input_ids: Character ids, shape `(batch, tokens, characters)`.
            mask: True at words, shape `(batch, tokens)`.

        Returns:
            Shape `(batch, tokens, num_char_filters)`, zeros at padding.
        """
        words, places = input_ids[mask][:, : self.max_chars].unique(dim=0, return_inverse=True)
        x = self.dropout(self.embedding(words)).transpose(1, 2)  # (words, char_size, characters)
        vectors = self.convolution(x).amax(dim=2).relu()[places]
        return vectors.new_zeros(*mask.shape, vectors.shape[1]).masked_scatter(
            mask[..., None], vectors
        )


class ElmoTaskModel(ElmoPreTrainedModel):
    """Base of task models: a biLM, static vectors and a character encoder, each if configured.

    Weights that are not trained, such as those of a frozen biLM, are saved too.
    """

    config: ElmoTaskConfig  # type: ignore[assignment]  # it contains the biLM's
    config_class = ElmoTaskConfig
    accepts_loss_kwargs = False  # the loss is a sum or mean over a batch, as published

    def __init__(self, config: ElmoTaskConfig) -> None:
        super().__init__(config)
        if config.num_mixes:
            self.elmo = ElmoModel(config.bilm)
            self.features = ElmoFeatures(
                config.bilm, num_mixes=config.num_mixes, dropout=config.elmo_dropout
            )
        if config.static_size:
            self.static_vectors = nn.Embedding(
                config.static_vocab_size, config.static_size, padding_idx=0
            )
        if config.char_size:
            self.characters = CharacterEncoder(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw initial values by a module's `set_initial_values` or `reset_parameters`.

        Values that were loaded stay, also if a thread that loads another model ends the guard of
        transformers, which is one for the whole process.
        """
        weights = list(module.parameters())
        loaded = [weight for weight in weights if getattr(weight, "_is_hf_initialized", False)]
        if weights and len(loaded) == len(weights):
            return
        values = [weight.clone() for weight in loaded]
        if isinstance(module, ElmoLstm) or hasattr(module, "set_initial_values"):
            super()._init_weights(module)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        for weight, value in zip(loaded, values, strict=True):
            weight.copy_(value)

    def _freeze(self) -> None:
        """Freeze the biLM, its mixes and the static vectors, if so configured."""
        super()._freeze()
        if self.config.static_size:
            self.static_vectors.requires_grad_(self.config.trains_static)

    @property
    def is_bilm_frozen(self) -> bool:
        """Whether training leaves the biLM unchanged, or there is no biLM."""
        return not self.config.num_mixes or not any(
            parameter.requires_grad for parameter in self.elmo.parameters()
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        elmo_layers: Tensor | None = None,
        static_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> ModelOutput:
        """Run the model on a batch.

        If an example has several sentences, its words' tensors have a sentence axis after `batch`.

        Args:
            input_ids: Character ids, shape `(batch, tokens, characters)`.
            attention_mask: 1 at words, shape `(batch, tokens)`; padding is on the right.
            word_input_ids: Rows of the biLM's lexicon, shape `(batch, tokens)`.
            elmo_layers: The biLM's layers, if they are already computed, shape
                `(batch, layers, tokens, hidden_size)`.
            static_ids: Rows of the static vectors, shape `(batch, tokens)`.
            labels: Gold labels, as for `compute`.
            **kwargs: Other arguments of `compute`; the rest is ignored (transformers passes extra
                arguments).

        Raises:
            ValueError: If padding is on the left, or an input that the model reads is missing.
        """
        mask = self._need(attention_mask, "attention_mask")
        inputs = Inputs(mask, input_ids, word_input_ids, elmo_layers, static_ids)
        return self.compute(inputs, labels, **kwargs)

    def compute(self, inputs: Inputs, labels: Tensor | None = None, **kwargs: Any) -> ModelOutput:
        """Compute scores, and the loss if gold results are given; the loss includes `penalty()`."""
        raise NotImplementedError

    def predict(self, **inputs: Tensor) -> list[Any]:
        """Predict each example of a batch; inputs as for `forward`, without gold results."""
        raise NotImplementedError

    def make_card(self, **options: Any) -> str:
        """Write the model's card; options as for `make_task_card`."""
        self.config.architectures = [type(self).__name__]
        return make_task_card(self.config, **options)

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        is_main_process: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save the model; also write a model card with its scores if the folder has no card."""
        card = Path(save_directory) / CARD_FILE
        if is_main_process and not card.exists():
            card.parent.mkdir(parents=True, exist_ok=True)
            card.write_text(self.make_card(name=card.resolve().parent.name), encoding="utf-8")
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    def penalty(self) -> Tensor | float:
        """Compute `mix_l2` times the sum of squares of all mix weights, for a task's loss."""
        return self.features.penalty() if self.config.num_mixes else 0.0

    def read_words(self, inputs: Inputs) -> Words:
        """Make the words' vectors: look them up, encode characters, run the biLM, concatenate.

        Raises:
            ValueError: If padding is on the left, or an input that the model reads is missing.
        """
        mask = inputs.attention_mask.bool()
        if mask.dim() < 2:
            raise ValueError(f"This model reads several texts per example, got one. {self._hint}")
        if (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError('Expected words before padding: tokenize with padding_side="right".')
        config = self.config
        parts: list[Tensor] = []
        if config.static_size:
            parts.append(self.static_vectors(self._need(inputs.static_ids, "static_ids")))
        if config.char_size:
            parts.append(self.characters(self._need(inputs.input_ids, "input_ids"), mask))
        mixes: Sequence[Tensor] = ()
        if inputs.elmo_layers is not None and config.num_mixes:
            mixes = self.features.mix(inputs.elmo_layers.transpose(0, 1), mask)
        elif config.num_mixes:
            ids = inputs.input_ids, mask.long(), inputs.word_input_ids
            layers, _ = run_for_layers(self.elmo, *ids)
            mixes = self.features.mix(layers, mask)
        if config.elmo_at in ("input", "both"):
            parts.append(mixes[0])
        x = torch.cat(parts, dim=-1)
        is_read = config.elmo_at in ("output", "both")
        output = mixes[-1] if is_read else x.new_zeros(*mask.shape, 0)
        return Words(x, output, mask)

    def _need(self, ids: Tensor | None, name: str) -> Tensor:
        if ids is None:
            raise ValueError(f"This model reads {name}, and none were given. {self._hint}")
        return ids

    @property
    def _hint(self) -> str:
        """Say what makes the inputs of this model."""
        return (
            "hf_elmo.tasks.load_task_model returns what makes inputs of words; among pipelines, "
            f'say pipeline("{self.config.model_type}", ...).'
        )


def load_bilm(model: ElmoTaskModel, bilm: ElmoPreTrainedModel) -> None:
    """Copy a biLM's weights into a task model whose biLM has the same configuration."""
    if model.config.num_mixes:
        model.elmo.load_state_dict(bilm.base_model.state_dict())
