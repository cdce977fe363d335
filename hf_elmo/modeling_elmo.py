"""The biLM: character encoder, biLSTM, scalar mix, and the models built of them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import CommitInfo, HfApi
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from .configuration_elmo import ElmoConfig
from .lstm import ElmoLstm, ElmoLstmStack, run_stacks
from .lstm_products import Quantization, pack_int8_weight
from .model_card import make_model_card
from .word_cache import WordCache

# Rows of the target vocabulary (bilm/data.py, `Vocabulary`; the first lines of its file).
SENTENCE_START_LABEL = 0
SENTENCE_END_LABEL = 1
IGNORED_LABEL = -100  # torch's cross entropy and all of transformers

CARD_FILE = "README.md"  # the Hub's name for a model card

LAYER_NORM_EPSILON = 1e-12  # bilm/elmo.py, weight_layers
BILM_PREFIXES = ("token_encoder.", "forward_lstm.", "backward_lstm.")
# Words of which the characters are encoded at a time, so that memory stays bounded.
WORDS_PER_CHUNK = 128


class ElmoState(NamedTuple):
    """State of the LSTMs between two calls, as the original programs carry it.

    Each direction is `(h, c)`: h of shape `(layers, batch, projection_size)`, c of shape
    `(layers, batch, cell_size)`.
    """

    forward: tuple[Tensor, Tensor]
    backward: tuple[Tensor, Tensor] | None


class _StatefulOutput(ModelOutput):
    """An output of which `state` is an attribute, but no key and no part of the tuple.

    Pipelines and Trainer index the value of every key by sentence; a state has other axes.
    """

    state: ElmoState | None

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]  # transformers' own
        if "state" in self:
            OrderedDict.__delitem__(self, "state")


@dataclass
class ElmoModelOutput(_StatefulOutput):
    """What `ElmoModel` returns.

    Attributes:
        last_hidden_state: The top layer, shape `(batch, tokens, hidden_size)`.
        elmo: The mix that the configuration sets, shape `(batch, tokens, hidden_size)`.
        hidden_states: On request, the word vectors (twice side by side if bidirectional) and
            each LSTM layer: `num_hidden_layers + 1` tensors `(batch, tokens, hidden_size)`.
        state: The LSTMs' state after the last word of each sentence; an attribute only.
        attention_mask: 1 where a row is a word, shape `(batch, tokens)`; with
            `keep_sentence_boundaries` it is longer by 2 and counts the boundaries in.
    """

    last_hidden_state: Tensor | None = None
    elmo: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    state: ElmoState | None = None
    attention_mask: Tensor | None = None


@dataclass
class ElmoForPreTrainingOutput(_StatefulOutput):
    """What `ElmoForPreTraining` returns.

    Attributes:
        loss: Mean of the directions' cross entropies, where labels were given.
        forward_logits: Scores of each next word, before the softmax, shape
            `(batch, tokens + 1, vocab_size)`: the row of `<S>`, then one of each word.
        backward_logits: Scores of each previous word, likewise: a row of each word, then that of
            `</S>`; None if unidirectional.
        hidden_states: As in `ElmoModelOutput`.
        state: As in `ElmoModelOutput`.
    """

    loss: Tensor | None = None
    forward_logits: Tensor | None = None
    backward_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    state: ElmoState | None = None


class ElmoHighway(nn.Module):
    """Highway layer: `g * relu(transform(x)) + (1 - g) * x`, `g = sigmoid(gate(x))`.

    Srivastava et al. 2015, with the names of bilm-tf's "carry" gate put right: it multiplies the
    transform (bilm/model.py, `high`).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

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
        self.cache = WordCache()

    def train(self, mode: bool = True) -> Self:
        """Set the mode; what is trained forgets the words it knew."""
        if mode:
            self.cache.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.cache.clear()  # new weights may lie where the old ones lay
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own

    def forward(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode words, each on its own, equal ones once.

        Where no gradient can be wanted, the vectors of the words stay in `cache`.

        Args:
            input_ids: Character ids, shape `(words, characters)`, or None without characters.
            word_input_ids: Rows of the lexicon, shape `(words,)`, or None without a lexicon.

        Returns:
            Word vectors, shape `(words, projection_size)`, on the weights' device.
        """
        columns = [word_input_ids[:, None]] if word_input_ids is not None else []
        columns += [input_ids] if input_ids is not None else []
        rows = torch.cat(columns, dim=1).to("cpu", torch.int32).contiguous().numpy()
        if not len(rows):
            return next(self.parameters()).new_empty(0, self.config.projection_size)
        keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0].tolist()
        numbers: dict[bytes, int] = {}
        places = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])
        vectors = self._fetch(list(numbers))
        return vectors[places.to(vectors.device)]

    def _fetch(self, keys: list[bytes]) -> Tensor:
        """Look distinct words up in the cache, unless gradients may be wanted."""
        parameters = list(self.parameters())
        is_frozen = not any(parameter.requires_grad for parameter in parameters)
        if (torch.is_grad_enabled() or self.training) and not is_frozen:
            return self._encode(keys)
        versions = tuple(
            (parameter.data_ptr(), -1 if parameter.is_inference() else parameter._version)
            for parameter in parameters
        )
        device_type = parameters[0].device.type
        autocast = torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type)
        return self.cache.fetch(keys, (versions, autocast), self._encode)

    def _encode(self, keys: list[bytes]) -> Tensor:
        """Encode distinct words, a few of like length at a time, so that memory is bounded."""
        ids = torch.frombuffer(bytearray().join(keys), dtype=torch.int32).view(len(keys), -1)
        order = (ids != self.config.char_padding_id).sum(dim=1).argsort()
        chunks = [self._encode_chunk(chunk) for chunk in ids[order].split(WORDS_PER_CHUNK)]
        vectors = torch.cat(chunks)
        return vectors[order.argsort().to(vectors.device)]

    def _encode_chunk(self, ids: Tensor) -> Tensor:
        parts = []
        device = next(self.parameters()).device
        if self.config.word_embedding_size:
            parts.append(self.word_embedding(ids[:, 0].to(device)))
        if self.config.char_embedding_size:
            characters = ids[:, -self.config.max_characters_per_token :]
            parts.append(self._encode_characters(self._trim(characters).to(device)))
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


def _convolve(x: Tensor, layer: nn.Conv1d) -> Tensor:
    """Convolve words `(words, characters, width)` to `(words, positions, filters)`.

    With so few channels, a product of windows trains in a quarter less time; what is not trained
    gets a convolution, whose order of sums is nearer to that of the original programs.
    """
    if not (torch.is_grad_enabled() and layer.training and layer.weight.requires_grad):
        return layer(x.transpose(1, 2)).transpose(1, 2)
    windows = x.unfold(1, layer.kernel_size[0], 1).transpose(2, 3).flatten(2)
    return F.linear(windows, layer.weight.transpose(1, 2).flatten(1), layer.bias)


def mix_layers(
    layers: Tensor,
    weights: Tensor,
    gamma: Tensor | float,
    *,
    layer_norm: str = "none",
    mask: Tensor | None = None,
) -> Tensor:
    """Sum the layers of each token (Peters et al. 2018, eq. 1): `gamma * sum_j softmax(w)_j * h_j`.

    Args:
        layers: Shape `(layers, batch, tokens, width)`.
        weights: One number a layer, before the softmax, shape `(layers,)`.
        gamma: Factor of the sum.
        layer_norm: `"none"`; `"sentence"`: mean and variance over each sentence's words;
            `"batch"`: over all words of the batch, as bilm-tf's `weight_layers` does.
        mask: 1 where a row is a word, shape `(batch, tokens)`; None = everywhere. Layer norm needs
            it: what is no word gives a row of zeros.

    Returns:
        Shape `(batch, tokens, width)`.
    """
    if layer_norm != "none":
        layers = _normalize_layers(layers, layer_norm, mask)
    return gamma * torch.tensordot(weights.softmax(dim=0).to(layers.dtype), layers, dims=1)


def _normalize_layers(layers: Tensor, layer_norm: str, mask: Tensor | None) -> Tensor:
    axes = (2, 3) if layer_norm == "sentence" else (1, 2, 3)
    keep = torch.ones_like(layers[0, ..., :1]) if mask is None else mask[..., None].to(layers.dtype)
    count = (keep.sum(dim=[axis - 1 for axis in axes], keepdim=True) * layers.shape[-1]).clamp(1)
    mean = (layers * keep).sum(dim=axes, keepdim=True) / count
    centred = (layers - mean) * keep
    variance = centred.square().sum(dim=axes, keepdim=True) / count
    return centred * torch.rsqrt(variance + LAYER_NORM_EPSILON)


class ElmoScalarMix(nn.Module):
    """A task's own weighted sum of the biLM's layers (Peters et al. 2018, eq. 1).

    Computes `gamma * sum_j softmax(weights)_j * layer_j`, then dropout.

    Args:
        num_layers: Layers to mix, the word vectors included.
        weights: Initial weights before the softmax; None = zeros, the mean of the layers.
        gamma: Initial factor.
        layer_norm: As in `mix_layers`.
        dropout: Probability for the mix, in training only.
        is_trained: Whether weights and gamma are learned; otherwise they stay as given.

    Raises:
        ValueError: If the number of weights is not the number of layers.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        weights: Sequence[float] | None = None,
        gamma: float = 1.0,
        layer_norm: str = "none",
        dropout: float = 0.0,
        is_trained: bool = True,
    ) -> None:
        super().__init__()
        self.initial_weights = [0.0] * num_layers if weights is None else list(weights)
        self.initial_gamma = gamma
        if len(self.initial_weights) != num_layers:
            raise ValueError(f"Expected {num_layers} weights, got {len(self.initial_weights)}.")
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(torch.tensor(self.initial_weights), requires_grad=is_trained)
        self.gamma = nn.Parameter(torch.tensor([gamma]), requires_grad=is_trained)
        self.dropout = nn.Dropout(dropout)

    def reset_parameters(self) -> None:
        """Set weights and gamma to their initial values."""
        initialization.copy_(self.weights, torch.tensor(self.initial_weights))
        initialization.constant_(self.gamma, self.initial_gamma)

    def forward(self, layers: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the layers of each token.

        Args:
            layers: Layer outputs, shape `(layers, batch, tokens, width)`, or a sequence of them.
            mask: 1 where a row is a word, shape `(batch, tokens)`; used by layer norm.

        Returns:
            Embeddings, shape `(batch, tokens, width)`.

        Raises:
            ValueError: If the number of layers differs from the number of weights.
        """
        if len(layers) != len(self.weights):
            raise ValueError(f"Expected {len(self.weights)} layers to mix, got {len(layers)}.")
        stacked = layers if isinstance(layers, Tensor) else torch.stack(list(layers))
        mixed = mix_layers(stacked, self.weights, self.gamma, layer_norm=self.layer_norm, mask=mask)
        return self.dropout(mixed)

    def penalty(self) -> Tensor:
        """Sum the squares of the weights: the paper's `||w||^2`, to be scaled by its lambda.

        Added to a task's loss, it keeps the mix near the layers' mean (Peters et al. 2018, 3.4).
        """
        return self.weights.square().sum()


class ElmoPreTrainedModel(PreTrainedModel):
    """What all ELMo models share: configuration, initial values, strict loading."""

    config: ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoTokenEncoder", "ElmoLstmStack"]  # noqa: RUF012 (transformers' own)
    _keys_to_ignore_on_load_unexpected = [r"^softmax\."]  # noqa: RUF012 (a biLM without its LM head)
    _supports_context_parallel = False
    _freezes_bilm = False  # whether `freeze_bilm` of the configuration means this class

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw the initial values that bilm-tf draws (bilm/training.py)."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]  # transformers' own
        if isinstance(module, ElmoLstm | ElmoScalarMix):
            module.reset_parameters()
        elif isinstance(module, ElmoHighway):
            deviation = module.gate.in_features**-0.5
            for linear, bias in ((module.gate, -2.0), (module.transform, 0.0)):
                initialization.normal_(linear.weight, std=deviation)
                initialization.constant_(linear.bias, bias)
        elif isinstance(module, ElmoTokenEncoder):
            _initialize_token_encoder(module)
        elif isinstance(module, ElmoForPreTraining):
            initialization.normal_(module.softmax.weight, std=module.softmax.in_features**-0.5)
            initialization.zeros_(module.softmax.bias)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Pass over no module: of custom code, transformers skips those without own parameters.

        That rule spares loaded tensors that `_init_weights` would overwrite; ours goes through
        `transformers.initialization`, which spares them by itself.
        """
        super()._initialize_weights(module)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | PathLike[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Load a model as `PreTrainedModel.from_pretrained` does, and its biLM strictly.

        Raises:
            ValueError: If a tensor of the biLM is missing or surplus, unless the caller asks for
                the report (`output_loading_info=True`) and so is told. Tensors of heads may be
                there or not, with transformers' usual warning.
            RuntimeError: If a tensor is misshapen, unless `ignore_mismatched_sizes=True`, which is
                for heads only. (So does transformers, but without naming it.)
        """
        wants_report = kwargs.pop("output_loading_info", False)
        allows_misshapen_heads = kwargs.pop("ignore_mismatched_sizes", False)
        model: Self
        report: dict[str, Any]
        model, report = super().from_pretrained(  # type: ignore[misc]  # a pair, as asked for
            pretrained_model_name_or_path,
            *args,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that the error is ours, and names them
            **kwargs,
        )
        name = str(pretrained_model_name_or_path)
        if not wants_report:
            _check_keys(report, name)
        _check_shapes(report, name, allows_misshapen_heads)
        model._freeze_bilm()  # transformers makes new parameters when it loads, all trainable
        if not cls.is_remote_code():
            vars(model.config).pop("auto_map", None)  # names files that saving would not write
        return (model, report) if wants_report else model

    def save_pretrained(  # type: ignore[override]  # the rest is passed through
        self,
        save_directory: str | PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save as `PreTrainedModel.save_pretrained` does, and a model card where there is none."""
        hub_names = {"repo_id", "commit_message", "create_pr", "private"} if push_to_hub else set()
        hub_options = {name: kwargs.pop(name) for name in hub_names & kwargs.keys()}
        super().save_pretrained(save_directory, is_main_process, state_dict, **kwargs)
        card = Path(save_directory) / CARD_FILE
        if is_main_process and not card.exists():
            name = card.resolve().parent.name
            card.write_text(make_model_card(self.config, name=name), encoding="utf-8")
        if is_main_process and push_to_hub:
            hub_options.setdefault("repo_id", card.resolve().parent.name)
            self.push_to_hub(**hub_options, token=kwargs.get("token"))

    def push_to_hub(  # type: ignore[override]  # the base class takes anything
        self,
        repo_id: str,
        *,
        license: str | None = None,  # noqa: A002 (the metadata's own name)
        language: str | Sequence[str] | None = None,
        tags: Sequence[str] = (),
        commit_message: str = "Upload model",
        commit_description: str | None = None,
        private: bool | None = None,
        token: bool | str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        max_shard_size: int | str = "50GB",
    ) -> CommitInfo:
        """Upload the model to the Hub, with a model card unless the repository has one.

        Args:
            repo_id: Name of the repository; it is made if need be.
            license: See `make_model_card`.
            language: See `make_model_card`.
            tags: See `make_model_card`.
            commit_message: First line of the commit's message.
            commit_description: The rest of it.
            private: Whether a new repository is private; None = as its owner has set.
            token: As for every call of the Hub; None = the stored one.
            revision: Branch to write to.
            create_pr: Whether to open a pull request instead.
            max_shard_size: Largest size of a file of weights.

        Returns:
            What the Hub says of the commit.
        """
        hub = HfApi(token=token)
        repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not revision.startswith("refs/"):
            hub.create_branch(repo_id, branch=revision, exist_ok=True)
        has_card = hub.file_exists(repo_id, CARD_FILE, revision=revision)
        with TemporaryDirectory() as folder:
            card = make_model_card(
                self.config, name=repo_id, license=license, language=language, tags=tags
            )
            (Path(folder) / CARD_FILE).write_text(card, encoding="utf-8")
            self.save_pretrained(folder, max_shard_size=max_shard_size)
            return hub.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                ignore_patterns=[CARD_FILE] if has_card else None,
                commit_message=commit_message,
                commit_description=commit_description,
                revision=revision,
                create_pr=create_pr,
            )

    def _freeze_bilm(self) -> None:
        """Leave the biLM's weights untrained, if this class does and the configuration says so."""
        if self._freezes_bilm and self.config.freeze_bilm:
            self.base_model.requires_grad_(False)


def _initialize_table(table: Tensor) -> None:
    """Draw the rows of an embedding; the row 0, "no token", is zero."""
    initialization.uniform_(table, -1.0, 1.0)
    if not getattr(table, "_is_hf_initialized", False):  # a slice would not know
        initialization.zeros_(table[0])


def _initialize_token_encoder(encoder: ElmoTokenEncoder) -> None:
    config = encoder.config
    if config.char_embedding_size:
        _initialize_table(encoder.char_embedding.weight)
    for (width, _), layer in zip(config.char_filters or [], encoder.char_convolutions, strict=True):
        if config.char_activation == "relu":
            initialization.uniform_(layer.weight, -0.05, 0.05)
        else:
            deviation = (width * config.char_embedding_size) ** -0.5
            initialization.normal_(layer.weight, std=deviation)
        initialization.constant_(cast(Tensor, layer.bias), 0.0)
    if config.word_embedding_size:
        _initialize_table(encoder.word_embedding.weight)
    if config.use_token_projection:
        deviation = encoder.projection.in_features**-0.5
        initialization.normal_(encoder.projection.weight, std=deviation)
        initialization.zeros_(encoder.projection.bias)


def _is_of_bilm(key: str) -> bool:
    return key.removeprefix("elmo.").startswith(BILM_PREFIXES)


def _check_keys(report: dict[str, Any], name: str) -> None:
    """Refuse a checkpoint that has not the very tensors of the biLM."""
    for problem, keys in (
        ("misses", report["missing_keys"]),
        ("has surplus", report["unexpected_keys"]),
    ):
        wrong = sorted(filter(_is_of_bilm, keys))
        if wrong:
            raise ValueError(
                f"The checkpoint {name!r} {problem} tensors: {', '.join(wrong)}. Its weights do "
                "not fit its config.json."
            )


def _check_shapes(report: dict[str, Any], name: str, allows_misshapen_heads: bool) -> None:
    """Refuse a checkpoint of which a tensor has another shape than its configuration asks for."""
    wrong = [
        f"{key} {tuple(got)} for {tuple(want)}"
        for key, got, want in sorted(report["mismatched_keys"])
        if _is_of_bilm(key) or not allows_misshapen_heads
    ]
    if wrong:
        raise RuntimeError(
            f"The checkpoint {name!r} has misshapen tensors: {', '.join(wrong)}. Its weights do "
            "not fit its config.json. (ignore_mismatched_sizes=True draws a new head.)"
        )


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
        self.post_init()  # type: ignore[no-untyped-call]  # transformers' own

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

    def encode_words(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode words, each on its own, equal ones once.

        Args:
            input_ids: Character ids, shape `(words, characters)`, or None without characters.
            word_input_ids: Rows of the lexicon, shape `(words,)`, or None without a lexicon.

        Returns:
            Word vectors, shape `(words, projection_size)`.
        """
        return self.token_encoder(input_ids, word_input_ids)

    def encode_boundaries(self) -> Tensor:
        """Encode `<S>` and `</S>`, shape `(2, projection_size)`."""
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
        return self.encode_words(ids, word_ids)

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
        if state.backward is None:
            (outputs,) = run_stacks(
                [self.forward_lstm], [packed], batch_sizes, [state.forward], [False]
            )
            return [packed, *outputs[0]], ElmoState(outputs[1], None)
        forward, backward = run_stacks(
            [self.forward_lstm, self.backward_lstm],
            [packed, packed],
            batch_sizes,
            [state.forward, state.backward],
            [False, True],
        )
        pairs = [(packed, packed), *zip(forward[0], backward[0], strict=True)]
        return [torch.cat(pair, dim=-1) for pair in pairs], ElmoState(forward[1], backward[1])

    def zero_state(self, batch: int, like: Tensor) -> ElmoState:
        """Make the state before a first step, in the dtype and on the device of `like`."""
        config = self.config
        h = like.new_zeros(config.num_hidden_layers, batch, config.projection_size)
        c = like.new_zeros(config.num_hidden_layers, batch, config.cell_size)
        return ElmoState((h, c), (h, c) if config.bidirectional else None)

    @can_return_tuple
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
        """
        mask = self._check_inputs(input_ids, attention_mask, word_input_ids)
        batch = len(mask)
        words = self.encode_words(
            None if input_ids is None else input_ids[mask],
            None if word_input_ids is None else word_input_ids[mask],
        )
        # The LSTMs read hidden_states[0] itself, so that its gradient can be asked for.
        words = words.repeat(1, 2 if self.config.bidirectional else 1)  # (words, hidden_size)
        first = _lay_out(words, mask.shape, *mask.nonzero(as_tuple=True))
        words = first[mask][:, : self.config.projection_size]
        table = torch.cat([self.encode_boundaries(), words])
        order, batch_sizes, entries, rows, columns = _pack(mask)
        if state is not None:
            if (state.backward is not None) != self.config.bidirectional:
                raise ValueError(
                    f"Expected a state {'with' if self.config.bidirectional else 'without'} a "
                    "backward direction, as this model returns it."
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
        hidden_states = tuple(_lay_out(layer, mask.shape, rows, columns) for layer in layers)
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
        weights = config.mix_weights or [0.0] * config.num_mixed_layers
        return mix_layers(
            torch.stack(hidden_states),
            torch.tensor(weights, device=mask.device),
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
                raise ValueError(
                    f"This model {'needs' if is_read else 'takes no'} {name}; its tokenizer, from "
                    "the same name, gives what it needs."
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


def _pack(mask: Tensor) -> tuple[Tensor, list[int], Tensor, Tensor, Tensor]:
    """Lay out framed sentences time by time, longest first.

    Args:
        mask: True where there is a word, shape `(batch, tokens)`.

    Returns:
        order: Sentences by falling length, shape `(batch,)`.
        batch_sizes: Sentences that reach each time step.
        entries: For each step 0 for `<S>`, 1 for `</S>`, else 2 + the word's number in reading
            order, shape `(steps,)`.
        rows, columns: Where each step stands in a batch with boundary rows, shape `(steps,)`.
    """
    batch, tokens = mask.shape
    sentences = torch.arange(batch, device=mask.device)
    lengths = mask.sum(dim=1)
    rows, places = mask.nonzero(as_tuple=True)
    ranks = mask.cumsum(dim=1)[rows, places]  # 1 for the first word of a sentence
    entries = torch.zeros(batch, tokens + 2, dtype=torch.long, device=mask.device)
    entries[rows, ranks] = torch.arange(2, 2 + len(rows), device=mask.device)
    entries[sentences, lengths + 1] = 1
    columns = torch.zeros_like(entries)
    columns[rows, ranks] = places + 1
    if tokens:
        columns[:, 0] = torch.where(lengths > 0, columns[:, 1] - 1, 0)
    columns[sentences, lengths + 1] = columns[sentences, lengths] + 1
    order = lengths.argsort(descending=True, stable=True)
    is_step = torch.arange(tokens + 2, device=mask.device)[:, None] < lengths[order] + 2
    batch_sizes = [size for size in is_step.sum(dim=1).tolist() if size]
    flat = is_step.nonzero()  # (steps, [time, sorted row])
    step_rows = order[flat[:, 1]]
    step = (step_rows, flat[:, 0])
    return order, batch_sizes, entries[step], step_rows, columns[step]


def _lay_out(packed: Tensor, shape: Sequence[int], rows: Tensor, columns: Tensor) -> Tensor:
    """Put vectors `(steps, width)` in their places, zeros elsewhere: `(batch, tokens, width)`."""
    return packed.new_zeros(*shape, packed.shape[-1]).index_put((rows, columns), packed)


def _reorder_state(state: ElmoState, order: Tensor, batch: int) -> ElmoState:
    """Put the sentences of a state in another order."""
    for direction in state:
        for part in direction or ():
            if part.shape[1] != batch:
                raise ValueError(f"Expected a state of {batch} sentences, got {part.shape[1]}.")
    forward, backward = state
    return ElmoState(
        (forward[0][:, order], forward[1][:, order]),
        backward and (backward[0][:, order], backward[1][:, order]),
    )


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
        self.post_init()  # type: ignore[no-untyped-call]  # transformers' own

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
                for scores, target in zip(logits, targets, strict=False)
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


class _ElmoClassifier(ElmoPreTrainedModel):
    """What the classifiers share: a biLM, the task's own mixes of its layers, a linear layer.

    While no weight of the biLM is trained, it stays in evaluation mode (no dropout) and keeps no
    graph, whatever is done to the rest.
    """

    accepts_loss_kwargs = True  # losses are sums over `num_items_in_batch` where Trainer gives it
    _freezes_bilm = True

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config)
        self.scalar_mixes = nn.ModuleList(
            ElmoScalarMix(
                config.num_mixed_layers,
                weights=config.mix_weights,
                gamma=config.mix_gamma,
                layer_norm=config.mix_layer_norm,
            )
            for _ in range(config.num_scalar_mixes)
        )
        self.dropout = nn.Dropout(config.classifier_dropout)
        width = config.num_scalar_mixes * cast(int, config.hidden_size)
        self.classifier = nn.Linear(width, cast(int, config.num_labels))
        self.post_init()  # type: ignore[no-untyped-call]  # transformers' own
        self._freeze_bilm()

    @property
    def is_bilm_frozen(self) -> bool:
        """Whether no weight of the biLM is trained."""
        return not any(parameter.requires_grad for parameter in self.elmo.parameters())

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; a frozen biLM stays in evaluation mode."""
        super().train(mode)
        if self.is_bilm_frozen:
            self.elmo.train(False)
        return self

    def _mix(self, *inputs: Tensor | ElmoState | None) -> tuple[Tensor, ElmoModelOutput]:
        """Run the biLM; put each mix of its layers side by side.

        Args:
            *inputs: The first arguments of `ElmoModel`, up to the state.

        Returns:
            Shape `(batch, tokens, num_scalar_mixes * hidden_size)`, and what the biLM returns.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_bilm_frozen):
            outputs = self.elmo(*inputs, output_hidden_states=True, return_dict=True)
        mixes = [mix(outputs.hidden_states, outputs.attention_mask) for mix in self.scalar_mixes]
        return torch.cat(mixes, dim=-1), outputs

    def _select(self, outputs: ElmoModelOutput, is_wanted: bool | None) -> Any:
        """Return the biLM's layers, if wanted by the call or else by the configuration."""
        if is_wanted is None:
            is_wanted = self.config.output_hidden_states
        return outputs.hidden_states if is_wanted else None


class ElmoForTokenClassification(_ElmoClassifier):
    """A label for every word: linear over the task's mix (tagging, named entities).

    The biLM is not trained unless the configuration says `freeze_bilm=False`.
    """

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
        mixed, outputs = self._mix(input_ids, attention_mask, word_input_ids, state)
        logits = self.classifier(self.dropout(mixed))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits, labels, self.config, num_items_in_batch=num_items_in_batch
            )
        hidden_states = self._select(outputs, output_hidden_states)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states)


class ElmoForSequenceClassification(_ElmoClassifier):
    """Labels or numbers for every sentence: linear over the mean or maximum of the task's mix.

    The biLM is not trained unless the configuration says `freeze_bilm=False`.
    """

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
        mixed, outputs = self._mix(input_ids, attention_mask, word_input_ids, state)
        mask = cast(Tensor, outputs.attention_mask).bool()
        logits = self.classifier(self.dropout(_pool(mixed, mask, self.config.classifier_pooling)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config)  # a mean over the labels
            if num_items_in_batch is not None:
                loss = loss * (labels != IGNORED_LABEL).sum() / num_items_in_batch
        hidden_states = self._select(outputs, output_hidden_states)
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
