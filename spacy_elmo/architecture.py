"""`spacy_elmo.ElmoModel.v1`: a biLM as a thinc model, from docs to the layers of their tokens."""

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
from .shim import Dtype, ElmoShim

if TYPE_CHECKING:
    from hf_elmo.inference.layer_cache import LayerCache

Array: TypeAlias = npt.NDArray[np.float32]  # or cupy's, where the pipeline is on a GPU
ThincModel: TypeAlias = Model[Any, Any]


class DocLayers(NamedTuple):
    """Layers of a doc.

    Attributes:
        layers: Shape `(layers, tokens, width)`, zeros for white space.
        segments: The words of each sentence that the biLM has read.
    """

    layers: Array
    segments: list[Segment]


class WordLayers(NamedTuple):
    """Layers of some words of a doc.

    Attributes:
        doc: Number of the doc.
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
    """Wrap a biLM; its weights are read when they are first needed.

    Args:
        name: Folder with `config.json` and `model.safetensors`, or a name on the Hugging Face Hub,
            or "elmo-mini-en", the model that comes with this package.
        revision: Branch, tag or commit on the Hub; None = the newest.
        dtype: What the biLM computes in, and what its weights are stored in; None = as the model
            itself says. `doc.tensor` is float32 always.
        quantization: `"int8"` = the LSTMs' products in 8 bits, by ONNX Runtime on a CPU. Weights
            are stored as they were.
        backend: `"auto"` = ONNX Runtime for float32 or int8 on a CPU, while the biLM is not
            trained, else PyTorch; `"torch"` or `"onnx"`.

    Returns:
        A model that turns docs into `DocLayers`.
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
    """Return the shim that holds a thinc model's biLM."""
    return cast(ElmoShim, model.shims[0])


def init(model: ThincModel, X: Any = None, Y: Any = None) -> None:  # noqa: N803 (thinc's names)
    """Read the weights."""
    get_shim(model).load()


def forward(
    model: ThincModel, docs: Sequence[Doc], is_train: bool
) -> tuple[list[DocLayers], Callable[[list[Array]], list[Doc]]]:
    """Compute the layers of all tokens of docs.

    Args:
        model: What `make_elmo_model` makes.
        docs: Docs, empty ones included.
        is_train: Whether the biLM learns: drops out, and takes gradients.

    Returns:
        The layers, and a function that takes the gradient of each doc's layers.
    """
    segments = [find_doc_segments(model, doc) for doc in docs]
    if is_train:
        return train_layers(model, docs, segments)
    return compute_layers(model, docs, segments), lambda gradients: []


def find_doc_segments(model: ThincModel, doc: Doc) -> list[Segment]:
    """Find the sentences of a doc as the model's settings say."""
    return find_segments(doc, model.attrs["segment"], model.attrs["max_length"])


def alloc_layers(model: ThincModel, doc: Doc) -> Array:
    """Make zeros for all layers of a doc, shape `(layers, tokens, width)`."""
    config = get_shim(model).load().model.config
    shape = (config.num_mixed_layers, len(doc), config.hidden_size)
    return cast(Array, model.ops.alloc(cast(Any, shape)))


def compute_layers(
    model: ThincModel,
    docs: Sequence[Doc],
    segments: Sequence[list[Segment]],
    *,
    cache: "LayerCache | None" = None,
) -> list[DocLayers]:
    """Compute the layers of all tokens of docs, with the arguments of `iterate_word_layers`."""
    results = [
        DocLayers(alloc_layers(model, doc), s) for doc, s in zip(docs, segments, strict=True)
    ]
    for words in iterate_word_layers(model, docs, segments, cache=cache):
        rows = words.rows
        is_range = rows[-1] - rows[0] + 1 == len(rows)  # no white space between: much faster
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
    """Compute the layers of all words of docs, some words at a time.

    Args:
        model: What `make_elmo_model` makes.
        docs: Docs, empty ones included.
        segments: The sentences of each doc.
        whole_sentences: Whether each result must be a whole sentence, however long.
        cache: Where layers are kept, or None.

    Returns:
        Layers in the order of the words, white space left out.
    """
    from hf_elmo.inference import embedding

    shim = get_shim(model)
    bilm = shim.load()
    options: dict[str, Any] = {
        "model": bilm.model,
        "tokenizer": bilm.tokenizer,
        "max_batch_tokens": model.attrs["max_batch_tokens"] or embedding.MAX_BATCH_TOKENS,
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
    """Compute the layers of all tokens in a way that the biLM can learn from.

    Args:
        model: What `make_elmo_model` makes.
        docs: A batch of docs, of which all activations are kept.
        segments: The sentences of each doc.

    Returns:
        The layers, and a function that takes the gradient of each doc's layers, once, and adds to
        the gradients of the biLM's parameters.
    """
    results = [
        DocLayers(alloc_layers(model, doc), s) for doc, s in zip(docs, segments, strict=True)
    ]
    located = _locate_sentences(segments)
    if not located:
        return results, lambda gradients: []
    bilm = get_shim(model).load()
    sentences = [[docs[number][row].text for row in rows] for number, rows in located]
    batch = bilm.tokenizer(
        sentences, is_split_into_words=True, padding=True, return_tensors="pt"
    ).to(bilm.model.device)
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
            values = xp2torch(cast(Any, gradients[number][:, rows]), device=states.device)
            gradient[:, sentence, : len(rows)] = values
        states.backward(gradient)
        return []

    return results, backprop


def _locate_sentences(segments: Sequence[list[Segment]]) -> list[tuple[int, Segment]]:
    """Pair each sentence with the number of its doc."""
    return [(number, rows) for number, doc in enumerate(segments) for rows in doc]


def to_ops(ops: Ops, values: Tensor) -> Array:
    """Turn a tensor into a float32 array of thinc's backend: numpy, or cupy on a GPU."""
    values = values.float()
    values = values if ops.device_type == "gpu" else values.cpu()
    return cast(Array, ops.asarray(torch2xp(values)))
