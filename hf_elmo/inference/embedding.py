"""Embed many sentences: run them in batches, select layers, mix and pool."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hf_elmo.array_operations import are_finite, join, stack
from hf_elmo.bilm import ElmoBilm
from hf_elmo.configuration_elmo import SPECIAL_CHAR_IDS, ElmoConfig
from hf_elmo.inference.backend import Backend, Quantization, choose_backend
from hf_elmo.loading import ElmoPreTrainedModel, find_input_device
from hf_elmo.scalar_mix import mix_as_configured
from hf_elmo.tokenization_batches import check_words
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .batches import LOOK_AHEAD, MAX_BATCH_TOKENS, batch_by_length, group_sentences
from .exact_windows import WindowRunner, refuse_training

Layers: TypeAlias = Literal["mix", "all", "top", "mean"] | int
Pooling: TypeAlias = Literal["none", "mean", "max"]


class RunOptions(TypedDict, total=False):
    """Options of `embed_pieces` for running the biLM."""

    max_batch_tokens: int
    look_ahead: int | None
    backend: Backend
    quantization: Quantization


class Piece(NamedTuple):
    """Vectors of consecutive words of one sentence. Most sentences are one piece.

    Attributes:
        sentence: Index of the sentence, from 0.
        start: Position of the first word in the sentence.
        num_words: Number of words of the complete sentence.
        vectors: Shape `(layers, words, hidden_size)` or `(words, hidden_size)`; without the axis of
            words if pooled.
    """

    sentence: int
    start: int
    num_words: int
    vectors: Tensor


def embed_layers(
    sentences: Iterable[Sequence[str]],
    model: ElmoPreTrainedModel | ElmoBilm,
    tokenizer: ElmoTokenizer,
    *,
    dtype: torch.dtype | None = None,
    **options: Unpack[RunOptions],
) -> Iterator[Tensor]:
    """Compute all layers of each sentence.

    Args:
        sentences: Sequences of words, of any length.
        model: biLM, or a model that contains one, in evaluation mode.
        tokenizer: Tokenizer of the model.
        dtype: As for `embed_pieces`.
        **options: As for `embed_pieces`.

    Returns:
        An iterator of tensors `(layers, words, hidden_size)` on the model's device, one per
        sentence, in order.

    Raises:
        ValueError, TypeError: As `embed_pieces`.
    """
    pieces = embed_pieces(sentences, model, tokenizer, dtype=dtype, **options)
    return (join([p.vectors for p in group], -2) for group in _by_sentence(pieces))


def embed(
    sentences: Iterable[Sequence[str]],
    model: ElmoPreTrainedModel | ElmoBilm,
    tokenizer: ElmoTokenizer,
    *,
    layers: Layers = "mix",
    pooling: Pooling = "none",
    dtype: npt.DTypeLike = "float32",
    **options: Unpack[RunOptions],
) -> Iterator[npt.NDArray[Any]]:
    """Compute the vectors of each sentence as an array.

    Args:
        sentences: Sequences of words, of any length.
        model: biLM, or a model that contains one, in evaluation mode.
        tokenizer: Tokenizer of the model.
        layers: As for `embed_pieces`.
        pooling: As for `embed_pieces`.
        dtype: Data type of the arrays: float16, float32 or float64.
        **options: As for `embed_pieces`.

    Returns:
        An iterator of arrays, one per sentence, in order. Their shape is `(words, hidden_size)`,
        with a first axis of layers if `layers="all"`, and without the axis of words if pooled.

    Raises:
        ValueError, TypeError: As `embed_pieces`; also if the data type is another one.
    """
    if np.dtype(dtype) not in (np.float16, np.float32, np.float64):
        raise ValueError(f"Expected dtype float16, float32 or float64, got {np.dtype(dtype)}.")
    pieces = embed_pieces(
        sentences,
        model,
        tokenizer,
        layers=layers,
        pooling=pooling,
        device="cpu",
        dtype=torch.from_numpy(np.empty(0, dtype)).dtype,
        **options,
    )
    axis = -1 if pooling != "none" else -2
    return (join([p.vectors for p in group], axis).numpy() for group in _by_sentence(pieces))


def embed_pieces(
    sentences: Iterable[Sequence[str]],
    model: ElmoPreTrainedModel | ElmoBilm,
    tokenizer: ElmoTokenizer,
    *,
    layers: Layers = "all",
    pooling: Pooling = "none",
    max_batch_tokens: int = MAX_BATCH_TOKENS,
    look_ahead: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    backend: Backend = "auto",
    quantization: Quantization = None,
) -> Iterator[Piece]:
    """Compute the vectors of each sentence; split huge sentences into pieces, to limit memory.

    Args:
        sentences: Sequences of words, of any length.
        model: biLM, or a model that contains one, in evaluation mode.
        tokenizer: Tokenizer of the model.
        layers: `"all"` = all layers, word vectors first; `"top"` = last layer; `"mean"` = mean of
            all layers; `"mix"` = configured mix; or the index of a layer. A mix with layer norm
            normalises each sentence on its own.
        pooling: `"none"` = one vector per word; `"mean"` or `"max"` = one vector per sentence,
            which is zero for a sentence without words.
        max_batch_tokens: Time steps per forward pass. Longer sentences run in windows, with the
            same result. The value is halved if memory runs out.
        look_ahead: Words that are read in advance, to batch sentences of similar length. The
            vectors of about as many words are held in memory. Longer sentences are split into
            pieces. None = eight times `max_batch_tokens`.
        device: Device of the vectors; None = the model's.
        dtype: Data type of the vectors; None = the model's.
        backend: As for `choose_backend`.
        quantization: As for `choose_backend`.

    Returns:
        An iterator of pieces, in order. A sentence without words is one empty piece.

    Raises:
        ValueError: If an argument is out of range, the model is in training mode, or the tokenizer
            has other special character ids than the model.
        TypeError: If a sentence is a string, or a word is not a string.
    """
    bilm = cast(ElmoBilm, model.base_model)
    look_ahead = LOOK_AHEAD * max_batch_tokens if look_ahead is None else look_ahead
    _check_arguments(bilm, layers, pooling, max_batch_tokens, look_ahead)
    check_tokenizer(bilm.config, tokenizer)
    dtype = bilm.dtype if dtype is None else dtype
    bilm = choose_backend(bilm, backend, quantization)
    mixes_late = layers == "mix" and bilm.config.mix_layer_norm != "none"
    select = partial(
        _select,
        wanted="all" if mixes_late else layers,
        model=bilm,
        dtype=dtype,
    )
    place = find_input_device(bilm) if device is None else torch.device(device)
    wide = torch.promote_types(dtype, torch.float32) if mixes_late else dtype
    runner = WindowRunner(bilm, tokenizer, select, max_batch_tokens, place, wide)
    pieces = _run_groups(group_sentences(_check_sentences(sentences), look_ahead), runner)
    if mixes_late:
        pieces = (_mix_normalized(group, bilm, dtype) for group in _by_sentence(pieces))
    if pooling != "none":
        pieces = (_pool(group, pooling) for group in _by_sentence(pieces))
    return map(_check_finite, pieces)


def _check_arguments(
    model: ElmoBilm, layers: Layers, pooling: Pooling, max_batch_tokens: int, look_ahead: int
) -> None:
    count = model.config.num_mixed_layers
    if isinstance(layers, int) and not -count <= layers < count:
        raise ValueError(f"Expected a layer from 0 (word vectors) to {count - 1}, got {layers}.")
    if not isinstance(layers, int) and layers not in ("mix", "all", "top", "mean"):
        raise ValueError(f"Expected layers mix, all, top, mean or a number, got {layers!r}.")
    if pooling not in ("none", "mean", "max"):
        raise ValueError(f"Expected pooling none, mean or max, got {pooling!r}.")
    if max_batch_tokens < 1 or look_ahead < 1:
        raise ValueError(
            "Expected max_batch_tokens and look_ahead above 0, got "
            f"{max_batch_tokens} and {look_ahead}."
        )
    refuse_training(model)


def check_tokenizer(config: ElmoConfig, tokenizer: ElmoTokenizer) -> None:
    """Refuse the tokenizer of another biLM, whose marks of words would be read as characters."""
    for name in SPECIAL_CHAR_IDS if config.char_embedding_size else ():
        expected, got = getattr(config, name), getattr(tokenizer, name)
        if got != expected:
            raise ValueError(
                f"Expected a tokenizer with {name}={expected}, as the biLM has, got {got}. Load "
                "the tokenizer from the folder of the biLM, or use ElmoTokenizer.from_config."
            )


def _check_sentences(sentences: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    for number, words in enumerate(sentences):
        check_words(words, number)
        yield words


def _run_groups(groups: Iterable[list[Sequence[str]]], runner: WindowRunner) -> Iterator[Piece]:
    """Run groups of sentences; yield a group with one sentence in pieces."""
    first = 0
    for group in groups:
        if len(group) == 1:
            for _, start, vectors in runner.run(group):
                yield Piece(first, start, len(group[0]), vectors)
        else:
            yield from _run_by_length(group, first, runner)
        first += len(group)


def _run_by_length(group: list[Sequence[str]], first: int, runner: WindowRunner) -> Iterator[Piece]:
    """Run sentences in batches of similar length, longest first."""
    parts: list[list[Tensor]] = [[] for _ in group]
    for batch in batch_by_length(list(map(len, group)), runner.max_batch_tokens):
        for row, _, vectors in runner.run([group[number] for number in batch]):
            parts[batch[row]].append(vectors)
    for number, words in enumerate(group):
        vectors = join(parts[number], -2)
        parts[number] = []
        yield Piece(first + number, 0, len(words), vectors)


def _check_finite(piece: Piece) -> Piece:
    """Refuse NaN and infinity, for example from values that are too large for the data type."""
    if not are_finite(piece.vectors):
        raise ValueError(
            f"Expected finite vectors, got NaN or infinity in {piece.vectors.dtype}: the weights "
            "of the model are damaged, or its values are too large for this data type."
        )
    return piece


def _select(layers: list[Tensor], *, wanted: Layers, model: ElmoBilm, dtype: torch.dtype) -> Tensor:
    """Select the requested layers; average or mix in at least the precision of `dtype`."""
    if isinstance(wanted, int):
        return layers[wanted]
    if wanted == "top":
        return layers[-1]
    stacked = stack([layer.to(torch.promote_types(layer.dtype, dtype)) for layer in layers])
    if wanted == "mean":
        return stacked.mean(dim=0)
    return mix_as_configured(model.config, stacked[:, None])[0] if wanted == "mix" else stacked


def _by_sentence(pieces: Iterable[Piece]) -> Iterator[Iterator[Piece]]:
    for _, group in itertools.groupby(pieces, lambda piece: piece.sentence):
        yield group


def _mix_normalized(pieces: Iterator[Piece], model: ElmoBilm, dtype: torch.dtype) -> Piece:
    """Mix the layers of one sentence with layer norm, which needs all of its pieces."""
    parts = list(pieces)
    layers = join([piece.vectors for piece in parts], -2)[:, None]
    return parts[0]._replace(vectors=mix_as_configured(model.config, layers)[0].to(dtype))


def _pool(pieces: Iterator[Piece], pooling: Pooling) -> Piece:
    """Reduce a sentence to one vector."""
    first = next(pieces)
    if not first.num_words:
        return first._replace(vectors=first.vectors.sum(dim=-2))
    if pooling == "mean":
        # Sums in half precision overflow.
        dtype = torch.promote_types(first.vectors.dtype, torch.float32)
        total = first.vectors.sum(dim=-2, dtype=dtype)
        for piece in pieces:
            total += piece.vectors.sum(dim=-2, dtype=dtype)
        return first._replace(vectors=(total / first.num_words).to(first.vectors.dtype))
    total = first.vectors.amax(dim=-2)
    for piece in pieces:
        total = torch.maximum(total, piece.vectors.amax(dim=-2))
    return first._replace(vectors=total)
