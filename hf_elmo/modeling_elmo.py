"""The biLM in PyTorch: the encoder of words, and the model that runs the encoder and the LSTMs."""

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from .bilm import ElmoBilm
from .configuration_elmo import ElmoConfig
from .loading import ElmoPreTrainedModel
from .lstm import ElmoLstmStack, State
from .weight_fingerprint import KeptResult, fingerprint_module
from .word_cache import WordCache, encode_distinct, encode_in_chunks


def list_shapes(config: ElmoConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each weight of an `ElmoModel`, without allocating memory."""
    with torch.device("meta"):
        return {name: tuple(w.shape) for name, w in ElmoModel(config).state_dict().items()}


class ElmoHighway(nn.Module):
    """Highway layer: `g * relu(transform(x)) + (1 - g) * x`, `g = sigmoid(gate(x))`.

    Srivastava et al. 2015. bilm-tf (bilm/model.py, `high`) calls `g` the "carry" gate, although `g`
    multiplies the transform.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

    def set_initial_values(self) -> None:
        """Draw the weights; the initial gate bias of -2 makes the layer mostly keep its input."""
        deviation = self.gate.in_features**-0.5
        for linear, bias in ((self.gate, -2.0), (self.transform, 0.0)):
            initialization.normal_(linear.weight, std=deviation)
            initialization.constant_(linear.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each vector with its transform, shape `(words, width)` in and out."""
        return torch.lerp(x, F.relu(self.transform(x)), torch.sigmoid(self.gate(x)))


class ElmoTokenEncoder(nn.Module):
    """Encoder of words by spelling, lexicon, or both (Kim et al. 2015; Peters et al. 2018).

    Steps: character embedding, convolutions, maximum over *all* positions (padding characters are
    trained and included), activation, highways. If there is a lexicon, the word's lexicon vector is
    concatenated in front. The last step is the projection to `projection_size`, if configured.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        if config.char_embedding_size:
            self.char_embedding = nn.Embedding(
                config.char_vocab_size, config.char_embedding_size, padding_idx=0
            )
        self.char_convolutions: Sequence[nn.Conv1d] = nn.ModuleList(  # type: ignore[assignment]  # as iterated
            nn.Conv1d(config.char_embedding_size, number, width)
            for width, number in config.char_filters or []
        )
        num_highways = config.num_highway_layers if config.num_filters else 0
        self.highways = nn.ModuleList(ElmoHighway(config.num_filters) for _ in range(num_highways))
        if config.word_embedding_size:
            self.word_embedding = nn.Embedding(
                config.word_vocab_size, config.word_embedding_size, padding_idx=0
            )
        if config.use_token_projection:
            width = config.word_embedding_size + config.num_filters
            self.projection = nn.Linear(width, config.projection_size)

    def set_initial_values(self) -> None:
        """Draw the weights of the tables, the convolutions and the projection."""
        config = self.config
        if config.char_embedding_size:
            _initialize_table(self.char_embedding.weight)
        for (width, _), layer in zip(
            config.char_filters or [], self.char_convolutions, strict=True
        ):
            if config.char_activation == "relu":
                initialization.uniform_(layer.weight, -0.05, 0.05)
            else:
                deviation = (width * config.char_embedding_size) ** -0.5
                initialization.normal_(layer.weight, std=deviation)
            initialization.constant_(cast(Tensor, layer.bias), 0.0)
        if config.word_embedding_size:
            _initialize_table(self.word_embedding.weight)
        if config.use_token_projection:
            deviation = self.projection.in_features**-0.5
            initialization.normal_(self.projection.weight, std=deviation)
            initialization.zeros_(self.projection.bias)

    def forward(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode words independently, in chunks of words of similar length to bound the memory.

        Args:
            input_ids: Character ids, shape `(words, characters)`; None = the biLM reads none.
            word_input_ids: Rows of the lexicon, shape `(words,)`; None = the biLM has no lexicon.

        Returns:
            Word vectors, shape `(words, projection_size)`, on the weights' device.
        """
        return encode_in_chunks(self._encode_chunk, self.config, input_ids, word_input_ids)

    def _encode_chunk(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        parts = []
        device = next(self.parameters()).device
        if device.type == "meta":  # accelerate's offloading loads weights when they are used
            device = torch.device("cpu")
        if word_input_ids is not None:
            parts.append(self.word_embedding(word_input_ids.to(device)))
        if input_ids is not None:
            parts.append(self._encode_characters(input_ids.to(device)))
        x = torch.cat(parts, dim=-1)  # (words, word_embedding_size + filters)
        return self.projection(x) if self.config.use_token_projection else x

    def _encode_characters(self, input_ids: Tensor) -> Tensor:
        x = self.char_embedding(input_ids)  # (words, characters, width)
        x = torch.cat([_convolve(x, layer).amax(dim=1) for layer in self.char_convolutions], dim=1)
        x = F.relu(x) if self.config.char_activation == "relu" else torch.tanh(x)
        for highway in self.highways:
            x = highway(x)
        return x  # (words, filters)


# Types of the modules in an unmodified encoder.
ENCODER_CLASSES = {ElmoTokenEncoder, ElmoHighway, nn.Conv1d, nn.Embedding, nn.Linear, nn.ModuleList}


def _convolve(x: Tensor, layer: nn.Conv1d) -> Tensor:
    """Convolve words `(words, characters, width)` to `(words, positions, filters)`.

    In training, a matrix product over windows takes a quarter less time, as there are few channels.
    Otherwise, a convolution is used: it sums in an order closer to the original implementation's.
    """
    if not (torch.is_grad_enabled() and layer.training and layer.weight.requires_grad):
        return layer(x.transpose(1, 2)).transpose(1, 2)
    windows = x.unfold(1, layer.kernel_size[0], 1).transpose(2, 3).flatten(2)
    return F.linear(windows, layer.weight.transpose(1, 2).flatten(1), layer.bias)


def _initialize_table(table: Tensor) -> None:
    """Draw the rows of an embedding table; row 0, for "no token", is zero."""
    initialization.uniform_(table, -1.0, 1.0)
    if not getattr(table, "_is_hf_initialized", False):  # a slice has no such attribute
        initialization.zeros_(table[0])


class ElmoModel(ElmoBilm, ElmoPreTrainedModel):
    """The bidirectional language model without a head (Peters et al. 2018).

    The model itself adds `<S>` and `</S>` to sentences. By default, outputs have rows for the words
    only.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.token_encoder = ElmoTokenEncoder(config)
        self.forward_lstm = ElmoLstmStack(config)
        if config.bidirectional:
            self.backward_lstm = ElmoLstmStack(config)
        self.word_cache = WordCache()
        self.onnx_model = KeptResult[Any]()  # made by `hf_elmo.inference`
        self.post_init()

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, and clear the caches.

        A biLM whose weights are all frozen stays in evaluation mode: dropout would only add noise.
        The caches are cleared because fused optimisers change weights without raising the weights'
        version counter.
        """
        self.clear_caches()
        return super().train(mode and any(weight.requires_grad for weight in self.parameters()))

    def clear_caches(self) -> None:
        """Clear all cached results; needed only after a write through `weight.data`.

        Other changes of the weights or of the configuration invalidate the caches automatically.
        """
        self.word_cache.clear()
        self.onnx_model.clear()

    def get_input_embeddings(self) -> nn.Module:
        """Return the character table, or the lexicon if the model reads no characters."""
        encoder = self.token_encoder
        return encoder.char_embedding if self.config.char_embedding_size else encoder.word_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table that `get_input_embeddings` returns."""
        name = "char_embedding" if self.config.char_embedding_size else "word_embedding"
        setattr(self.token_encoder, name, value)

    @torch.compiler.disable
    def encode_words(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode words independently of each other; see `ElmoBilm.encode_words`."""
        encoder = self.token_encoder
        may_learn = self.training or torch.is_grad_enabled()
        may_learn = may_learn and any(weight.requires_grad for weight in self.parameters())
        fingerprint = None
        if not may_learn:
            fingerprint = fingerprint_module(self.config, encoder, ENCODER_CLASSES)
        if fingerprint is None:
            self.clear_caches()  # an optimiser's step or a merged adapter may follow
            return encode_distinct(encoder, self.config, None, None, input_ids, word_input_ids)
        cache = self.word_cache
        return encode_distinct(encoder, self.config, cache, fingerprint, input_ids, word_input_ids)

    @torch.compiler.disable
    def run_lstms(
        self,
        inputs: tuple[Tensor | None, Tensor | None],
        batch_sizes: list[int],
        states: tuple[State | None, State | None],
        *,
        reverse: bool = True,
    ) -> list[tuple[list[Tensor], State]]:
        """Run the LSTMs of one or both directions; see `ElmoBilm.run_lstms`."""
        names, reverses = ("forward_lstm", "backward_lstm"), (False, reverse)
        return [
            getattr(self, name)(packed, batch_sizes, state, reverse=is_reverse)
            for name, packed, state, is_reverse in zip(names, inputs, states, reverses, strict=True)
            if packed is not None
        ]
