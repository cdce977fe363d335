"""`spacy_elmo.ElmoModel.v1`: a biLM as a thinc model, from docs to the layers of their tokens."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Model, Ops, torch2xp
from torch import Tensor

from .segments import Segment, find_segments
from .shim import ElmoShim

Array: TypeAlias = Any  # of numpy or cupy
ThincModel: TypeAlias = Model[Any, Any]


class Piece(NamedTuple):
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
def make_elmo_model(name: str = "elmo-mini-en", revision: str | None = None) -> ThincModel:
    """Wrap a biLM; its weights are read when they are first needed.

    Args:
        name: Folder with `config.json` and `model.safetensors`, or a name on the Hugging Face Hub,
            or "elmo-mini-en", the model that comes with this package.
        revision: Branch, tag or commit on the Hub; None = the newest.

    Returns:
        A model that turns docs into the layers of their tokens, `(layers, tokens, width)` each.
    """
    return Model(
        "elmo",
        forward,
        init=init,
        attrs={"segment": "auto", "max_length": None, "max_batch_tokens": None},
        dims={"nO": None},
        shims=[ElmoShim(name, revision)],
    )


def get_shim(model: ThincModel) -> ElmoShim:
    """Give the shim that holds a thinc model's biLM."""
    return cast(ElmoShim, model.shims[0])


def init(model: ThincModel, X: Any = None, Y: Any = None) -> None:  # noqa: N803 (thinc's names)
    """Read the weights."""
    get_shim(model).load()


def forward(
    model: ThincModel, docs: list[Doc], is_train: bool
) -> tuple[list[Array], Callable[[list[Array]], list[Doc]]]:
    """Compute the layers of all tokens of docs.

    Args:
        model: What `make_elmo_model` makes.
        docs: Docs, empty ones included.
        is_train: Nothing is learned here; the gradient ends.

    Returns:
        For each doc, shape `(layers, tokens, width)`, zeros for white space.
    """
    all_layers = [alloc_layers(model, doc) for doc in docs]
    for piece in iterate_pieces(model, docs):
        all_layers[piece.doc][:, piece.rows] = to_ops(model.ops, piece.layers)
    return all_layers, lambda gradients: []


def alloc_layers(model: ThincModel, doc: Doc) -> Array:
    """Make zeros for all layers of a doc, shape `(layers, tokens, width)`."""
    config = get_shim(model).load().model.config
    return model.ops.alloc3f(config.num_mixed_layers, len(doc), cast(int, config.hidden_size))


def iterate_pieces(
    model: ThincModel, docs: Sequence[Doc], *, whole_sentences: bool = False
) -> Iterator[Piece]:
    """Compute the layers of all words of docs, piece by piece.

    Args:
        model: What `make_elmo_model` makes.
        docs: Docs, empty ones included.
        whole_sentences: Whether a piece must be a whole sentence, however long.

    Returns:
        The pieces in the order of the words. No piece holds white space.
    """
    from hf_elmo import embedding

    bilm, attrs = get_shim(model).load(), model.attrs
    segments = [
        (number, segment)
        for number, doc in enumerate(docs)
        for segment in find_segments(doc, attrs["segment"], attrs["max_length"])
    ]
    sentences = ([docs[number][row].text for row in rows] for number, rows in segments)
    batch_tokens = attrs["max_batch_tokens"] or embedding.BATCH_TOKENS
    pieces: Iterator[embedding.Piece]
    if whole_sentences:
        wholes = embedding.embed_layers(sentences, *bilm, batch_tokens=batch_tokens)
        pieces = (embedding.Piece(i, 0, x.shape[1], x) for i, x in enumerate(wholes))
    else:
        pieces = embedding.embed_pieces(sentences, *bilm, batch_tokens=batch_tokens)
    for sentence, start, _, layers in pieces:
        number, rows = segments[sentence]
        yield Piece(number, rows[start : start + layers.shape[1]], layers)


def to_ops(ops: Ops, values: Tensor) -> Array:
    """Turn a tensor into a float32 array of thinc's backend: numpy, or cupy on a GPU."""
    values = values.float()
    return ops.asarray(cast(Array, torch2xp(values if ops.device_type == "gpu" else values.cpu())))
