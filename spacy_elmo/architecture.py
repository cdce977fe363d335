"""`spacy_elmo.ElmoModel.v1`: a biLM as a thinc model, from docs to layers."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Model, Ops, torch2xp, xp2torch
from torch import Tensor

from .segments import Segment, find_segments
from .stored_bilm import Dtype, ElmoShim

if TYPE_CHECKING:
    from hf_elmo.inference.layer_cache import LayerCache

Array: TypeAlias = npt.NDArray[np.float32]  # or cupy's, if the pipeline is on a GPU
ThincModel: TypeAlias = Model[Any, Any]


class DocLayers(NamedTuple):
    """Layers of a doc.

    Attributes:
        layers: Shape `(layers, tokens, width)`, zeros for white space.
        segments: Word positions of each sentence that the biLM read.
    """

    layers: Array
    segments: list[Segment]


class WordLayers(NamedTuple):
    """Layers of some words of a doc.

    Attributes:
        doc: Index of the doc.
        rows: Positions of the words in the doc.
        layers: Shape `(layers, words, width)`.
    """

    doc: int
    rows: Segment
    layers: Tensor


@registry.architectures("spacy_elmo.ElmoModel.v1")
def make_elmo_model(
    name: str = "elmo-mini-en",
    revision: str | None = None,
    dtype: Dtype | None = None,
    quantization: Literal["int8"] | None = None,
    backend: Literal["auto", "torch", "onnx"] = "auto",
) -> ThincModel:
    """Make a thinc model of a biLM; its weights are loaded on first use.

    Args:
        name: Folder with `config.json` and `model.safetensors`, name on the Hugging Face Hub, or
            "elmo-mini-en", the bundled model.
        revision: Branch, tag or commit on the Hub; None = branch `main`.
        dtype: Data type of the stored weights, and of the computation if the backend supports it.
            None = the model's own. `doc.tensor` is always float32.
        quantization: `"int8"` = 8-bit LSTM products on a CPU, by ONNX Runtime. The stored weights
            are not quantized.
        backend: Backend of inference: `"torch"`, `"onnx"`, or `"auto"` = the choice of
            `hf_elmo.inference.backend.choose_backend`. Training the biLM always uses PyTorch.

    Returns:
        A model from docs to `DocLayers`.
    """
    return Model(
        "elmo",
        forward,
        init=init,
        attrs={"segment": "auto", "max_length": None, "max_batch_tokens": None},
        dims={"nO": None},
        shims=[ElmoShim(name, revision, dtype, quantization, backend)],
    )


def get_shim(model: ThincModel) -> ElmoShim:
    """Return the shim of a thinc model, which holds the biLM."""
    return cast(ElmoShim, model.shims[0])


def init(model: ThincModel, X: Any = None, Y: Any = None) -> None:  # noqa: N803 (thinc's names)
    """Load the weights."""
    get_shim(model).load()


def forward(
    model: ThincModel, docs: Sequence[Doc], is_train: bool
) -> tuple[list[DocLayers], Callable[[list[Array]], list[Doc]]]:
    """Return the layers of docs, and a function that takes the gradients of these layers."""
    segments = [find_doc_segments(model, doc) for doc in docs]
    if is_train:
        return train_layers(model, docs, segments)
    return compute_layers(model, docs, segments), lambda gradients: []


def find_doc_segments(model: ThincModel, doc: Doc) -> list[Segment]:
    """Find the sentences of a doc by the settings of the model."""
    return find_segments(doc, model.attrs["segment"], model.attrs["max_length"])


def alloc_layers(model: ThincModel, doc: Doc) -> Array:
    """Return zeros for the layers of a doc, shape `(layers, tokens, width)`."""
    config = get_shim(model).load().model.config
    ops: Any = model.ops
    layers: Array = ops.alloc((config.num_mixed_layers, len(doc), config.output_size))
    return layers


def compute_layers(
    model: ThincModel,
    docs: Sequence[Doc],
    segments: Sequence[list[Segment]],
    *,
    cache: "LayerCache | None" = None,
) -> list[DocLayers]:
    """Compute the layers of docs; see `iterate_word_layers` for the arguments."""
    results = [
        DocLayers(alloc_layers(model, doc), s) for doc, s in zip(docs, segments, strict=True)
    ]
    for words in iterate_word_layers(model, docs, segments, cache=cache):
        rows = words.rows
        is_range = rows[-1] - rows[0] + 1 == len(rows)  # a slice is much faster than a list
        index = slice(rows[0], rows[-1] + 1) if is_range else rows
        results[words.doc].layers[:, index] = to_ops(model.ops, words.layers)
    return results


def iterate_word_layers(
    model: ThincModel,
    docs: Sequence[Doc],
    segments: Sequence[list[Segment]],
    *,
    whole_sentences: bool = False,
    cache: "LayerCache | None" = None,
) -> Iterator[WordLayers]:
    """Compute the layers of docs in order, piece by piece, to bound memory.

    Args:
        model: Model of `make_elmo_model`.
        docs: Docs; they can be empty.
        segments: Sentences of each doc.
        whole_sentences: Do not split long sentences into pieces.
        cache: Cache with the layers of sentences; None = no cache.
    """
    from hf_elmo.inference import batches, embedding

    shim = get_shim(model)
    bilm = shim.load()
    options: dict[str, Any] = {
        "model": bilm.model,
        "tokenizer": bilm.tokenizer,
        "max_batch_tokens": model.attrs["max_batch_tokens"] or batches.MAX_BATCH_TOKENS,
        # At least float32, as for `doc.tensor`: a mix in half precision is less exact.
        "dtype": torch.promote_types(bilm.model.dtype, torch.float32),
        "backend": shim.backend,
        "quantization": shim.quantization,
    }
    compute: Callable[..., Iterator[Tensor]] = partial(embedding.embed_layers, **options)
    located = _locate_sentences(segments)
    sentences = ([docs[number][row].text for row in rows] for number, rows in located)
    if cache is not None:
        wholes = cache.fetch(list(sentences), compute)
    elif whole_sentences:
        wholes = compute(sentences)
    else:
        pieces = embedding.embed_pieces(sentences, **options)
        for sentence, start, _, layers in pieces:
            number, rows = located[sentence]
            yield WordLayers(number, rows[start : start + layers.shape[1]], layers)
        return
    for (number, rows), layers in zip(located, wholes, strict=True):
        yield WordLayers(number, rows, layers)


def train_layers(
    model: ThincModel, docs: Sequence[Doc], segments: Sequence[list[Segment]]
) -> tuple[list[DocLayers], Callable[[list[Array]], list[Doc]]]:
    """Compute the layers of docs, and keep all activations for one backward pass.

    Returns:
        The layers, and a function to call once with the gradient of each doc's layers. The function
        adds to the gradients of the biLM's parameters.
    """
    results = [
        DocLayers(alloc_layers(model, doc), s) for doc, s in zip(docs, segments, strict=True)
    ]
    located = _locate_sentences(segments)
    if not located:
        return results, lambda gradients: []
    bilm = get_shim(model).load()
    sentences = [[docs[number][row].text for row in rows] for number, rows in located]
    options: dict[str, Any] = {"padding": True, "padding_side": "right", "return_tensors": "pt"}
    batch = bilm.tokenizer(sentences, is_split_into_words=True, **options).to(bilm.model.device)
    bilm.model.train()
    outputs = bilm.model(**batch, output_hidden_states=True)
    bilm.model.train(False)
    states = torch.stack(outputs.hidden_states)  # (layers, sentences, tokens, width)
    for sentence, (number, rows) in enumerate(located):
        values = to_ops(model.ops, states[:, sentence, : len(rows)].detach())
        results[number].layers[:, rows] = values

    def backprop(gradients: list[Array]) -> list[Doc]:
        gradient = torch.zeros_like(states)
        for sentence, (number, rows) in enumerate(located):
            values: Any = gradients[number][:, rows]
            gradient[:, sentence, : len(rows)] = xp2torch(values, device=states.device)
        states.backward(gradient)
        return []

    return results, backprop


def _locate_sentences(segments: Sequence[list[Segment]]) -> list[tuple[int, Segment]]:
    """Pair each sentence with the index of its doc."""
    return [(number, rows) for number, doc in enumerate(segments) for rows in doc]


def to_ops(ops: Ops, values: Tensor) -> Array:
    """Convert a tensor to a float32 array of thinc's backend: numpy, or cupy on a GPU."""
    values = values.float()
    values = values if ops.device_type == "gpu" else values.cpu()
    return cast(Array, ops.asarray(torch2xp(values)))
