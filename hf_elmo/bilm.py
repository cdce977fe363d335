"""The part of the biLM that is the same for PyTorch and for ONNX Runtime."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.utils.generic import can_return_tuple

from .array_operations import join, make_zeros
from .character_ids import spell_boundaries
from .configuration_elmo import ElmoConfig
from .lstm import State
from .modeling_outputs import ElmoModelOutput, ElmoState
from .packed_sentences import lay_out, pack_words
from .scalar_mix import mix_as_configured

NO_EXPORT = (
    "ELMo cannot be exported or traced (torch.export, torch.jit.trace, torch.onnx.export): its "
    "loops depend on the lengths of words and sentences, which a trace would fix. For an ONNX file "
    "run `python -m hf_elmo export NAME FOLDER`. Under torch.compile the model runs "
    "uncompiled, and the code around it is compiled."
)


PACKED = ("position_ids", "seq_idx", "cu_seq_lens_q")


class ElmoBilm:
    """Interface of a biLM, whether PyTorch or ONNX Runtime computes it.

    A subclass provides `config`, `device`, `encode_words` and `run_lstms`. This class checks the
    inputs, adds the boundary tokens, packs the sentences, joins the directions and mixes layers.
    """

    config: Any  # an ElmoConfig
    device: torch.device
    dtype: torch.dtype
    training: bool
    quantization: Literal["int8"] | None = None  # of the LSTMs' matrix products
    backend: Literal["auto", "torch", "onnx"] = "auto"  # for calls that give no backend

    @property
    def base_model(self) -> Any:
        """The biLM itself; a `PreTrainedModel` has this property too."""
        return self

    def run_lstms(
        self,
        inputs: tuple[Tensor | None, Tensor | None],
        batch_sizes: list[int],
        states: tuple[State | None, State | None],
        *,
        reverse: bool = True,
    ) -> list[tuple[list[Tensor], State]]:
        """Run the LSTMs of one or both directions, each over its own input.

        Args:
            inputs: Inputs of the forward and of the backward direction, shape
                `(steps, projection_size)`, packed as for `run_bilm`; None = skip the direction.
            batch_sizes: Number of sentences that reach each time step.
            states: The state of each direction, as in an `ElmoState`.
            reverse: Whether the backward direction runs from the last time step to the first. If
                not, the caller has already reversed the order of its input.

        Returns:
            For each direction that is run: the outputs of its layers, `num_hidden_layers` tensors
            of shape `(steps, projection_size)`, and its new state.
        """
        raise NotImplementedError

    def encode_words(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode words independently of each other; equal words are encoded once.

        Args:
            input_ids: Character ids, shape `(words, characters)`; None = the biLM reads none.
            word_input_ids: Rows of the lexicon, shape `(words,)`; None = the biLM has no lexicon.

        Returns:
            Word vectors, shape `(words, projection_size)`.
        """
        raise NotImplementedError

    def encode_boundaries(self) -> Tensor:
        """Encode `<S>` and `</S>`, shape `(2, projection_size)`."""
        return self.encode_words(*spell_boundaries(self.config))

    def run_bilm(
        self, packed: Tensor, batch_sizes: Sequence[int], state: ElmoState | None = None
    ) -> tuple[list[Tensor], ElmoState]:
        """Compute contextual vectors from packed word vectors; add no boundary tokens or padding.

        Args:
            packed: Word vectors, shape `(steps, projection_size)`, in the order of
                `torch.nn.utils.rnn.PackedSequence.data`: step by step, longest sentence first.
            batch_sizes: Number of sentences that reach each time step.
            state: Initial state, with the sentences in the order of `packed`; None = zeros.

        Returns:
            The word vectors and the output of each LSTM layer, `num_hidden_layers + 1` tensors of
            shape `(steps, hidden_size)`; and the state after each sentence.

        Raises:
            ValueError: If `batch_sizes` does not fit `packed`, or increases.
        """
        sizes = [int(size) for size in batch_sizes]
        if sum(sizes) != len(packed) or sorted(sizes, reverse=True) != sizes:
            raise ValueError(
                f"Expected batch_sizes with the sum {len(packed)} that never increase, got {sizes}."
            )
        if state is None:
            state = self.zero_state(sizes[0] if sizes else 0, packed)
        inputs = (packed, packed if self.config.bidirectional else None)
        directions = self.run_lstms(inputs, sizes, state)
        layers = [[packed, *outputs] for outputs, _ in directions]
        forward, *backward = [new for _, new in directions]
        return (
            [join(layer, -1) for layer in zip(*layers, strict=True)],
            ElmoState(forward, backward[0] if backward else None),
        )

    def zero_state(self, batch: int, like: Tensor) -> ElmoState:
        """Make a state of zeros for `batch` sentences, in the dtype and on the device of `like`."""
        config = self.config

        def make() -> State:
            h = make_zeros((config.num_hidden_layers, batch, config.projection_size), like)
            c = make_zeros((config.num_hidden_layers, batch, config.cell_size), like)
            return h, c

        return ElmoState(make(), make() if config.bidirectional else None)

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
            input_ids: Character ids, shape `(batch, tokens, characters)`; a row of zeros is not a
                word. None if the model reads no characters.
            attention_mask: 1 for each word, shape `(batch, tokens)`; None = 1 for each row
                that is not all zeros. Padding may be on either side.
            word_input_ids: Rows of the lexicon, shape `(batch, tokens)`; None without a lexicon.
            state: State that an earlier call returned for the same number of sentences; None =
                zeros: the vectors of a sentence then depend on its words only.
            keep_sentence_boundaries: Whether outputs also have rows for `<S>`, directly before the
                first word, and `</S>`, directly after the last word. A `mix_layer_norm` then
                counts them too, as AllenNLP does.
            output_hidden_states: Whether `hidden_states` is returned; None = as configured.
            **kwargs: Ignored (transformers passes extra arguments), except those of packed rows.

        Returns:
            An `ElmoModelOutput`, or its tuple with `return_dict=False`.

        Raises:
            TypeError: If ids are not integers.
            ValueError: If ids are missing, surplus, misshapen or out of range, if rows hold several
                sentences, or if the state has another number of sentences or of directions.
            NotImplementedError: If the model is being exported or traced.
        """
        is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # untyped
        if is_traced or torch.compiler.is_compiling():
            raise NotImplementedError(NO_EXPORT)
        refuse_packed(kwargs)
        config: ElmoConfig = self.config
        mask = _check_inputs(config, input_ids, attention_mask, word_input_ids)
        batch = len(mask)
        ids = input_ids if input_ids is None else input_ids[mask]
        word_ids = word_input_ids if word_input_ids is None else word_input_ids[mask]
        words, boundaries = self.encode_words(ids, word_ids), self.encode_boundaries()
        # The LSTMs read hidden_states[0] itself, so that autograd can compute its gradient.
        words = words.repeat(1, 2 if config.bidirectional else 1)  # (words, hidden_size)
        first = lay_out(words, mask.shape, *mask.nonzero(as_tuple=True))
        words = first[mask][:, : config.projection_size]
        table = torch.cat([boundaries, words])
        order, batch_sizes, entries, rows, columns = pack_words(mask)
        if state is not None:
            state = _check_state(config, state, batch).map(lambda x: x[:, order])
        layers, state = self.run_bilm(table[entries], batch_sizes, state)
        if keep_sentence_boundaries:
            mask = mask.new_zeros(batch, mask.shape[1] + 2)
            mask[rows, columns] = True
        else:
            is_word = entries >= 2
            rows, columns = rows[is_word], columns[is_word] - 1
            layers = [layer[is_word] for layer in layers]
        inverse = order.argsort()
        hidden_states = tuple(lay_out(layer, mask.shape, rows, columns) for layer in layers)
        if not keep_sentence_boundaries:
            hidden_states = (first, *hidden_states[1:])
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states
        return ElmoModelOutput(
            last_hidden_state=hidden_states[-1],
            elmo=mix_as_configured(config, torch.stack(hidden_states), mask),
            hidden_states=hidden_states if output_hidden_states else None,
            state=state.map(lambda x: x[:, inverse]),
            attention_mask=mask.long(),
        )


def refuse_packed(options: dict[str, Any]) -> None:
    """Refuse arguments of rows that hold several sentences.

    Raises:
        ValueError: If there are such arguments, as `DataCollatorWithFlattening` makes them.
    """
    found = [name for name in PACKED if options.get(name) is not None]
    if found:
        raise ValueError(
            f"Expected one sentence per row, got {found[0]}: a batch of packed sentences. Use a "
            "collator that pads."
        )


def _check_inputs(
    config: ElmoConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    word_ids: Tensor | None,
) -> Tensor:
    """Check the ids against the configuration; return the mask as booleans."""
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
    if input_ids is not None:
        words = (input_ids != 0).any(dim=-1)
    elif word_ids is not None:
        words = word_ids != 0
    if attention_mask is None:
        return words
    if attention_mask.shape != words.shape:
        raise ValueError(
            f"Expected attention_mask of shape {tuple(words.shape)}, got "
            f"{tuple(attention_mask.shape)}."
        )
    return attention_mask.bool()


def _check_state(config: ElmoConfig, state: ElmoState, batch: int) -> ElmoState:
    """Check that a state has the model's directions and layers, and one row per sentence."""
    if not isinstance(state, ElmoState):
        raise ValueError(
            f"Expected an ElmoState, got {type(state).__name__}. Pass the state of an output. It "
            "is lost (LostState) if another program rebuilds the output, for example accelerate "
            "with mixed precision: call the model before it is prepared."
        )
    if (state.backward is not None) != config.bidirectional:
        raise ValueError(
            f"Expected a state {'with' if config.bidirectional else 'without'} a backward "
            f"direction, got one {'with' if state.backward else 'without'}. Pass a state that this "
            "model returned."
        )
    for direction in state:
        for part in direction or ():
            if len(part) != config.num_hidden_layers:
                raise ValueError(
                    f"Expected a state of {config.num_hidden_layers} layers, got {len(part)}. Pass "
                    "a state that this model returned."
                )
            if part.shape[1] != batch:
                raise ValueError(
                    f"Expected a state of {batch} sentences, got {part.shape[1]}. Pass the state "
                    "that a call with as many sentences returned, or None for zeros."
                )
    return state
