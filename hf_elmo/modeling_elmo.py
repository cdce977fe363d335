"""The biLM in the order of the data: characters, words, words in context, their mix."""

from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .loading import ElmoPreTrainedModel
from .lstm import ElmoLstm, ElmoLstmStack, State, run_stacks
from .lstm_products import Quantization, pack_int8_weight
from .modeling_outputs import ElmoModelOutput, ElmoState
from .packed_sentences import lay_out, pack_words
from .scalar_mix import mix_layers
from .word_cache import WordCache, WordIds, encode_distinct, is_plain

# Words of which the characters are encoded at a time, so that memory stays bounded.
WORDS_PER_CHUNK = 128
NO_EXPORT = (
    "ELMo cannot be exported or traced (torch.export, torch.jit.trace, ONNX): its loops follow the "
    "lengths of words and sentences, which a graph would fix. Run it in PyTorch; under "
    "torch.compile it runs as it is, and what stands around it is compiled."
)


class ElmoHighway(nn.Module):
    """Highway layer: `g * relu(transform(x)) + (1 - g) * x`, `g = sigmoid(gate(x))`.

    Srivastava et al. 2015, with the names of bilm-tf's "carry" gate put right: it multiplies the
    transform (bilm/model.py, `high`).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

    def set_initial_values(self) -> None:
        """Draw the weights; the gates begin by carrying their input on."""
        deviation = self.gate.in_features**-0.5
        for linear, bias in ((self.gate, -2.0), (self.transform, 0.0)):
            initialization.normal_(linear.weight, std=deviation)
            initialization.constant_(linear.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each vector with its transform, shape `(words, width)` in and out."""
        return torch.lerp(x, F.relu(self.transform(x)), torch.sigmoid(self.gate(x)))


class ElmoTokenEncoder(nn.Module):
    """Vector of a word from its spelling, a lexicon, or both (Kim et al. 2015; Peters et al. 2018).

    Character embedding, convolutions, maximum over *all* positions (the padding characters are
    trained and take part), activation, highways; the word's own vector in front where there is a
    lexicon; projection to `projection_size`.
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
        """Encode words, each on its own, a few of like length at a time: memory is bounded.

        Args:
            input_ids: Character ids, shape `(words, characters)`, or None without characters.
            word_input_ids: Rows of the lexicon, shape `(words,)`, or None without a lexicon.

        Returns:
            Word vectors, shape `(words, projection_size)`, on the weights' device.
        """
        if input_ids is not None:
            order = (input_ids != self.config.char_padding_id).sum(dim=1).argsort()
        else:
            order = torch.arange(len(cast(Tensor, word_input_ids)))
        chunks = [
            self._encode_chunk(
                None if input_ids is None else input_ids[rows],
                None if word_input_ids is None else word_input_ids[rows],
            )
            for rows in order.split(WORDS_PER_CHUNK)
        ]
        vectors = torch.cat(chunks)
        return vectors[order.argsort().to(vectors.device)]

    def _encode_chunk(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        parts = []
        device = next(self.parameters()).device
        if device.type == "meta":  # the weights come when they are needed (accelerate's offloading)
            device = torch.device("cpu")
        if word_input_ids is not None:
            parts.append(self.word_embedding(word_input_ids.to(device)))
        if input_ids is not None:
            parts.append(self._encode_characters(self._trim(input_ids).to(device)))
        x = torch.cat(parts, dim=-1)  # (words, word_embedding_size + filters)
        return self.projection(x) if self.config.use_token_projection else x

    def _encode_characters(self, input_ids: Tensor) -> Tensor:
        x = self.char_embedding(input_ids)  # (words, characters, width)
        x = torch.cat([_convolve(x, layer).amax(dim=1) for layer in self.char_convolutions], dim=1)
        x = F.relu(x) if self.config.char_activation == "relu" else torch.tanh(x)
        for highway in self.highways:
            x = highway(x)
        return x  # (words, filters)

    def _trim(self, input_ids: Tensor) -> Tensor:
        """Cut off characters that cannot change a maximum.

        Windows that lie wholly in the padding are all alike: one of each width is enough.
        """
        used = (input_ids != self.config.char_padding_id).any(dim=0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        return input_ids[:, : longest + max(width for width, _ in self.config.char_filters or [])]


# Of all parts of an encoder that nobody has replaced by another.
ENCODER_CLASSES = {ElmoTokenEncoder, ElmoHighway, nn.Conv1d, nn.Embedding, nn.Linear, nn.ModuleList}


def _convolve(x: Tensor, layer: nn.Conv1d) -> Tensor:
    """Convolve words `(words, characters, width)` to `(words, positions, filters)`.

    With so few channels, a product of windows trains in a quarter less time; what is not trained
    gets a convolution, whose order of sums is nearer to that of the original programs.
    """
    if not (torch.is_grad_enabled() and layer.training and layer.weight.requires_grad):
        return layer(x.transpose(1, 2)).transpose(1, 2)
    windows = x.unfold(1, layer.kernel_size[0], 1).transpose(2, 3).flatten(2)
    return F.linear(windows, layer.weight.transpose(1, 2).flatten(1), layer.bias)


def _initialize_table(table: Tensor) -> None:
    """Draw the rows of an embedding; the row 0, "no token", is zero."""
    initialization.uniform_(table, -1.0, 1.0)
    if not getattr(table, "_is_hf_initialized", False):  # a slice would not know
        initialization.zeros_(table[0])


class ElmoModel(ElmoPreTrainedModel):
    """The bidirectional language model without a head (Peters et al. 2018).

    Sentences are framed by `<S>` and `</S>` inside the model; outputs have rows for the words only.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.token_encoder = ElmoTokenEncoder(config)
        self.forward_lstm = ElmoLstmStack(config)
        if config.bidirectional:
            self.backward_lstm = ElmoLstmStack(config)
        self.word_cache = WordCache()
        self.post_init()

    def train(self, mode: bool = True) -> Self:
        """Set the mode; while none of its weights is trained, a biLM stays in evaluation mode.

        Dropout in what does not learn would be noise. What is trained forgets the words it knew.
        """
        mode = mode and any(parameter.requires_grad for parameter in self.parameters())
        if mode:
            self.word_cache.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.word_cache.clear()  # a new tensor may reuse the old address
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own

    def get_input_embeddings(self) -> nn.Module:
        """Return the table that the first ids index: characters, or words if there are none."""
        encoder = self.token_encoder
        return encoder.char_embedding if self.config.char_embedding_size else encoder.word_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table that the first ids index."""
        name = "char_embedding" if self.config.char_embedding_size else "word_embedding"
        setattr(self.token_encoder, name, value)

    @property
    def quantization(self) -> Quantization:
        """How the products of the LSTMs are quantized; see `quantize`."""
        return cast(ElmoLstm, self.forward_lstm.layers[0]).quantization

    def quantize(self, quantization: Quantization) -> Self:
        """Set how the matrix products of the LSTMs are quantized in inference.

        `"int8"`: weights with a scale for each output, activations with one for each row, both
        found as they are needed. The parameters stay what they are: they are what is saved, and
        what runs in training mode and wherever a gradient is wanted, so use `torch.no_grad()`.

        Args:
            quantization: `"int8"`, or None for products in the model's dtype.

        Returns:
            The model itself.

        Raises:
            ValueError: If it is neither, or this device has no products in int8.
        """
        if quantization not in ("int8", None):
            raise ValueError(f'Expected quantization "int8" or None, got {quantization!r}.')
        if quantization is not None:
            pack_int8_weight(torch.ones(32, 16, device=self.device))  # tries it
        for module in self.modules():
            if isinstance(module, ElmoLstm):
                module.quantization = quantization
        return self

    @torch.compiler.disable
    def encode_words(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode words, each on its own, equal ones once.

        Where no gradient can be wanted, the vectors of the words stay in `word_cache`, unless a
        part of the encoder is replaced (by an adapter, for instance) or has hooks.

        Args:
            input_ids: Character ids, shape `(words, characters)`, or None without characters.
            word_input_ids: Rows of the lexicon, shape `(words,)`, or None without a lexicon.

        Returns:
            Word vectors, shape `(words, projection_size)`.
        """
        return self._encode((input_ids, word_input_ids))[0]

    def encode_boundaries(self) -> Tensor:
        """Encode `<S>` and `</S>`, shape `(2, projection_size)`."""
        return self._encode(self._spell_boundaries())[0]

    def _encode(self, *batches: WordIds) -> list[Tensor]:
        cache = self.word_cache if is_plain(self.token_encoder, ENCODER_CLASSES) else None
        return encode_distinct(self.token_encoder, cache, batches)

    def _spell_boundaries(self) -> WordIds:
        """Return the ids of `<S>` and `</S>`."""
        config = self.config
        ids = word_ids = None
        if config.char_embedding_size:
            ids = torch.full((2, config.max_characters_per_token), config.char_padding_id)
            ids[:, 0] = config.word_start_char_id
            ids[0, 1] = config.sentence_start_char_id
            ids[1, 1] = config.sentence_end_char_id
            ids[:, 2] = config.word_end_char_id
        if config.word_embedding_size:
            rows = [config.sentence_start_word_id, config.sentence_end_word_id]
            word_ids = torch.tensor(rows)
        return ids, word_ids

    def run_bilm(
        self, packed: Tensor, batch_sizes: list[int], state: ElmoState | None = None
    ) -> tuple[list[Tensor], ElmoState]:
        """Put word vectors in context. Knows of no boundary tokens and no padding.

        Args:
            packed: Word vectors, shape `(steps, projection_size)`, in the order of
                `torch.nn.utils.rnn.PackedSequence.data`: time by time, longest sentence first.
            batch_sizes: Number of sentences that reach each time step.
            state: State to start from, sentences in the order of `packed`; None = zeros.

        Returns:
            The word vectors and each LSTM layer, `num_hidden_layers + 1` tensors of shape
            `(steps, hidden_size)`, and the state after the last step of each sentence.
        """
        if state is None:
            state = self.zero_state(batch_sizes[0] if batch_sizes else 0, packed)
        inputs = (packed, packed if self.config.bidirectional else None)
        directions = self.run_lstms(inputs, batch_sizes, state)
        layers = [[packed, *outputs] for outputs, _ in directions]
        forward, *backward = [new for _, new in directions]
        return (
            [torch.cat(layer, dim=-1) for layer in zip(*layers, strict=True)],
            ElmoState(forward, backward[0] if backward else None),
        )

    @torch.compiler.disable
    def run_lstms(
        self,
        inputs: tuple[Tensor | None, Tensor | None],
        batch_sizes: list[int],
        states: tuple[State | None, State | None],
        *,
        reverse: bool = True,
    ) -> list[tuple[list[Tensor], State]]:
        """Run the LSTMs of both directions, each over an input of its own, or of one alone.

        Args:
            inputs: What the forward and what the backward direction reads, shape
                `(steps, projection_size)`, packed as for `run_bilm`; None = it is not run.
            batch_sizes: Number of sentences that reach each time step.
            states: The state of each, as in an `ElmoState`.
            reverse: Whether the backward direction runs from the last time step to the first. If
                not, its input stands in the order in which it is read.

        Returns:
            For each direction that is run, its layers, `num_hidden_layers` tensors of shape
            `(steps, projection_size)`, and its new state.
        """
        runs = [
            (getattr(self, name), packed, state, reverse and name == "backward_lstm")
            for name, packed, state in zip(
                ("forward_lstm", "backward_lstm"), inputs, states, strict=True
            )
            if packed is not None
        ]
        stacks, vectors, initial, reverses = zip(*runs, strict=True)
        return run_stacks(stacks, vectors, batch_sizes, initial, reverses)

    def zero_state(self, batch: int, like: Tensor) -> ElmoState:
        """Make the state before a first step, in the dtype and on the device of `like`."""
        config = self.config
        h = like.new_zeros(config.num_hidden_layers, batch, config.projection_size)
        c = like.new_zeros(config.num_hidden_layers, batch, config.cell_size)
        return ElmoState((h, c), (h, c) if config.bidirectional else None)

    @can_return_tuple
    @torch.compiler.disable  # its loops follow the lengths of words and sentences
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        state: ElmoState | None = None,
        keep_sentence_boundaries: bool = False,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> ElmoModelOutput:
        """Compute the vectors of every word of every sentence.

        Args:
            input_ids: Character ids, shape `(batch, tokens, characters)`; a row of zeros is no
                word. None if the model reads no characters.
            attention_mask: 1 where there is a word, shape `(batch, tokens)`; None = wherever the
                ids are not zero. Padding may stand on either side.
            word_input_ids: Rows of the word lexicon, shape `(batch, tokens)`, where there is one.
            state: What an earlier call returned for as many sentences; None = zeros, so that a
                sentence's vectors depend on nothing but its words.
            keep_sentence_boundaries: Whether `<S>` and `</S>` get rows too, right before the first
                and after the last word.
            output_hidden_states: Whether `hidden_states` is returned; None = as configured.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            An `ElmoModelOutput`, or its tuple with `return_dict=False`.

        Raises:
            ValueError: If ids are missing, surplus or misshapen, or the state has another batch.
            NotImplementedError: If the model is being exported or traced.
        """
        is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # untyped
        if is_traced or torch.compiler.is_compiling():
            raise NotImplementedError(NO_EXPORT)
        mask = self._check_inputs(input_ids, attention_mask, word_input_ids)
        batch = len(mask)
        ids = input_ids if input_ids is None else input_ids[mask]
        word_ids = word_input_ids if word_input_ids is None else word_input_ids[mask]
        words, boundaries = self._encode((ids, word_ids), self._spell_boundaries())
        # The LSTMs read hidden_states[0] itself, so that its gradient can be asked for.
        words = words.repeat(1, 2 if self.config.bidirectional else 1)  # (words, hidden_size)
        first = lay_out(words, mask.shape, *mask.nonzero(as_tuple=True))
        words = first[mask][:, : self.config.projection_size]
        table = torch.cat([boundaries, words])
        order, batch_sizes, entries, rows, columns = pack_words(mask)
        if state is not None:
            if (state.backward is not None) != self.config.bidirectional:
                raise ValueError(
                    f"Expected a state {'with' if self.config.bidirectional else 'without'} a "
                    f"backward direction, got one {'with' if state.backward else 'without'}. Pass "
                    "a state that this model returned."
                )
            state = _reorder_state(state, order, batch)
        layers, state = self.run_bilm(table[entries], batch_sizes, state)
        if keep_sentence_boundaries:
            mask = mask.new_zeros(batch, mask.shape[1] + 2)
            mask[rows, columns] = True
        else:
            is_word = entries >= 2
            rows, columns = rows[is_word], columns[is_word] - 1
            layers = [layer[is_word] for layer in layers]
        hidden_states = tuple(lay_out(layer, mask.shape, rows, columns) for layer in layers)
        if not keep_sentence_boundaries:
            hidden_states = (first, *hidden_states[1:])
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return ElmoModelOutput(
            last_hidden_state=hidden_states[-1],
            elmo=self._mix(hidden_states, mask),
            hidden_states=hidden_states if output_hidden_states else None,
            state=_reorder_state(state, order.argsort(), batch),
            attention_mask=mask.long(),
        )

    def _mix(self, hidden_states: tuple[Tensor, ...], mask: Tensor) -> Tensor:
        """Mix the layers as the configuration says."""
        config = self.config
        return mix_layers(
            torch.stack(hidden_states),
            torch.tensor(config.initial_mix_weights, device=mask.device),
            config.mix_gamma,
            layer_norm=config.mix_layer_norm,
            mask=mask,
        )

    def _check_inputs(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, word_ids: Tensor | None
    ) -> Tensor:
        """Check the ids against the configuration; return the mask as booleans."""
        config = self.config
        for name, ids, is_read in (
            ("input_ids", input_ids, config.char_embedding_size > 0),
            ("word_input_ids", word_ids, config.word_embedding_size > 0),
        ):
            if (ids is not None) != is_read:
                expected, got = (name, "none") if is_read else (f"no {name}", "some")
                raise ValueError(
                    f"Expected {expected}, got {got}. Call the model's own tokenizer, loaded by "
                    "the same name, and pass what it returns: model(**batch)."
                )
        if input_ids is not None and (
            input_ids.dim() != 3 or input_ids.shape[2] != config.max_characters_per_token
        ):
            raise ValueError(
                "Expected input_ids of shape (batch, tokens, "
                f"{config.max_characters_per_token}), got {tuple(input_ids.shape)}."
            )
        if word_ids is not None and (
            word_ids.dim() != 2 or (input_ids is not None and word_ids.shape != input_ids.shape[:2])
        ):
            raise ValueError(
                f"Expected word_input_ids of shape (batch, tokens), got {tuple(word_ids.shape)}."
            )
        words = cast(Tensor, word_ids != 0 if input_ids is None else (input_ids != 0).any(dim=-1))
        if attention_mask is None:
            return words
        if attention_mask.shape != words.shape:
            raise ValueError(
                f"Expected attention_mask of shape {tuple(words.shape)}, got "
                f"{tuple(attention_mask.shape)}."
            )
        return attention_mask.bool()


def _reorder_state(state: ElmoState, order: Tensor, batch: int) -> ElmoState:
    """Put the sentences of a state in another order."""
    for direction in state:
        for part in direction or ():
            if part.shape[1] != batch:
                raise ValueError(
                    f"Expected a state of {batch} sentences, got {part.shape[1]}. Pass the state "
                    "that a call with as many sentences returned, or None for zeros."
                )
    forward, backward = state
    return ElmoState(
        (forward[0][:, order], forward[1][:, order]),
        backward and (backward[0][:, order], backward[1][:, order]),
    )
