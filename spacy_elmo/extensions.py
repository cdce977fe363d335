"""Custom attributes of ELMo: `doc._`, `span._` and `token._`.

The attributes are computed from the doc's own data by functions that can be pickled. So the
attributes also work in other processes and for stored docs.
"""

from math import isclose
from typing import Any, NamedTuple

from spacy.tokens import Doc, Span, Token

from .architecture import Array

# Keys of `doc.user_data`, where spaCy keeps the values of `doc._.NAME`. Their type is Any, because
# spaCy's annotations allow only strings.
LAYERS_KEY: Any = ("._.", "elmo_layers", None, None)
ROLES_KEY: Any = ("._.", "elmo_roles", None, None)
VECTORS_KEY: Any = ("._.", "elmo_vectors", None, None)  # if doc.tensor holds other vectors
# Marks `doc.tensor` as ELMo's; the value is `(tokens, width, characters, first_maximum)`. The key
# refers to the doc's first character (0): spaCy keeps such values when docs are joined or copied in
# part.
TENSOR_KEY: Any = ("._.", "elmo_tensor", 0, None)


class Role(NamedTuple):
    """Semantic role: words, their label such as `ARG0`, and their predicate."""

    predicate: Token
    label: str
    span: Span


def register_extensions() -> None:
    """Add ELMo's attributes to all docs, spans and tokens.

    The `elmo` component calls this; call it yourself to read stored docs without a pipeline.

    Raises:
        ValueError: If other code has set an attribute of the same name.
    """
    _register(Doc, "elmo_layers", get_layers, set_layers)
    _register(Doc, "elmo_vectors", get_vectors, set_vectors)
    _register(Doc, "elmo", get_mean_vector)
    _register(Span, "elmo", get_mean_vector)
    _register(Token, "elmo", get_token_vector)


def register_roles() -> None:
    """Add `doc._.srl`, for the `elmo_task` component.

    Raises:
        ValueError: If other code has set an attribute of this name.
    """
    _register(Doc, "srl", get_roles)


def get_roles(doc: Doc) -> list[Role]:
    """Return `doc._.srl`: the semantic roles that an `elmo_task` component has found.

    Raises:
        ValueError: If the doc holds no roles, or the number of tokens has changed since then.
    """
    num_tokens, roles = doc.user_data.get(ROLES_KEY, (None, ()))
    if num_tokens != len(doc):
        raise ValueError(
            "This doc holds no semantic roles: run an 'elmo_task' component with a model of the "
            "task srl. Run it again on a doc that was joined from others or cut out of another, "
            "or if tokens were split or merged."
        )
    return [Role(doc[place], label, doc[start:end]) for place, label, start, end in roles]


def _register(kind: Any, name: str, getter: Any, setter: Any = None) -> None:
    if not kind.has_extension(name):
        kind.set_extension(name, getter=getter, setter=setter)
    elif not _is_same(kind.get_extension(name)[2], getter):
        raise ValueError(
            f"Expected {kind.__name__}._.{name} to be free for ELMo, got one of another "
            "program. Give that another name, or remove it first with "
            f"{kind.__name__}.remove_extension({name!r})."
        )


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two functions have the same definition, even if a module was reloaded."""
    names = ("__module__", "__qualname__")
    return [getattr(one, name, None) for name in names] == [getattr(other, name) for name in names]


def put_vectors(doc: Doc, vectors: Array, *, is_replaced: bool = False) -> None:
    """Set the tensor of a doc to vectors, shape `(tokens, width)`.

    If a later component replaces the tensor, the vectors are also stored in `doc.user_data`, and
    the tensor is not marked as ELMo's.
    """
    writable: Any = doc  # spaCy's annotations forbid these values
    writable.tensor = vectors
    writable.vector = writable.vector_norm = None  # spaCy computes them on access
    set_vectors(doc, vectors if is_replaced else None)
    if not is_replaced:
        mark = (*vectors.shape, _count_characters(doc), _find_first_maximum(vectors))
        doc.user_data[TENSOR_KEY] = mark


def get_layers(doc: Doc) -> Array:
    """Return `doc._.elmo_layers`: all layers of each token, shape `(layers, tokens, width)`.

    Layer 0 holds the context-free word vectors; white space has zeros.

    Raises:
        ValueError: If no layers were stored, or the number of tokens has changed since then.
    """
    layers = doc.user_data.get(LAYERS_KEY)
    if layers is None:
        raise ValueError(
            "This doc holds no ELMo layers: run the 'elmo' component with store_layers = true. "
            "Docs that were joined, or cut out of another, have lost theirs: run it on them."
        )
    _check_num_tokens(doc, layers.shape[1])
    return layers


def set_layers(doc: Doc, layers: Array | None) -> None:
    """Store all layers of each token, shape `(layers, tokens, width)`; None = no layers."""
    doc.user_data[LAYERS_KEY] = layers


def get_vectors(doc: Doc) -> Array:
    """Return `doc._.elmo_vectors`: the vector of each token, shape `(tokens, width)`.

    The vectors are `doc.tensor`, unless another component needs it for its own vectors.

    Raises:
        ValueError: If the doc has no ELMo vectors, or its number of tokens has changed.
    """
    vectors = doc.user_data.get(VECTORS_KEY)
    if vectors is None and _has_own_tensor(doc):
        vectors = doc.tensor
    if vectors is None:
        raise ValueError(
            "This doc holds no ELMo vectors: run the 'elmo' component, with set_tensor = true or "
            f"'auto'. Its tensor, shape {doc.tensor.shape}, is not known to be ELMo's; a DocBin "
            "keeps no tensors, and span.as_doc() marks its tensor as ELMo's only with "
            "copy_user_data=True."
        )
    _check_num_tokens(doc, len(vectors))
    return vectors


def _has_own_tensor(doc: Doc) -> bool:
    mark = doc.user_data.get(TENSOR_KEY)
    if mark is None:  # perhaps a copied part of a doc, with another first character
        mark = next((doc.user_data[key] for key in doc.user_data if _is_mark(key)), None)
    if mark is None or doc.tensor.ndim != 2:
        return False
    num_tokens, width, num_characters, *maximum = mark  # older docs have no maximum
    if doc.tensor.shape[1] != width:
        return False
    if _count_characters(doc) != num_characters:  # joined or cut
        return True
    # spaCy deletes rows when it merges tokens, so only `num_tokens` shows this.
    _check_num_tokens(doc, num_tokens)
    # Another pipeline may have set a tensor of the same width. The user may have rounded this one.
    return not maximum or isclose(maximum[0], _find_first_maximum(doc.tensor), rel_tol=0.01)


def _find_first_maximum(vectors: Any) -> float:
    """Return the largest value of the first row; 0 without rows."""
    return float(vectors[0].max()) if len(vectors) else 0.0


def _count_characters(doc: Doc) -> int:
    """Return `len(doc.text)` without building the text, because each `token._.elmo` calls this."""
    return doc[-1].idx + len(doc[-1].text_with_ws) if len(doc) else 0


def _is_mark(key: object) -> bool:
    return isinstance(key, tuple) and key[:2] == TENSOR_KEY[:2]


def set_vectors(doc: Doc, vectors: Array | None) -> None:
    """Store the token vectors in `doc.user_data`, not in `doc.tensor`; None = no vectors."""
    doc.user_data.pop(TENSOR_KEY, None)
    doc.user_data.pop(VECTORS_KEY, None)
    if vectors is not None:
        doc.user_data[VECTORS_KEY] = vectors


def get_mean_vector(piece: Doc | Span) -> Array:
    """Return `doc._.elmo` or `span._.elmo`: the mean vector of the words, without white space.

    `doc.vector` and `span.vector` include white space, which makes these vectors shorter.
    """
    doc = piece.doc
    start, end = (piece.start, piece.end) if isinstance(piece, Span) else (0, len(doc))
    vectors = get_vectors(doc)[start:end]  # the user may have rounded them to float16
    words = [place for place, token in enumerate(piece) if not token.is_space]
    if len(words) < len(vectors):  # vectors that the user has set need not be zero at white space
        vectors = vectors[words]
    total = vectors.sum(axis=0, dtype="float32")
    return total / max(len(words), 1)


def get_token_vector(token: Token) -> Array:
    """Return `token._.elmo`: the vector of a token, shape `(width,)`."""
    return get_vectors(token.doc)[token.i]


def _check_num_tokens(doc: Doc, num_rows: int) -> None:
    if num_rows != len(doc):
        raise ValueError(
            f"Expected ELMo vectors for {len(doc)} tokens, got {num_rows}: the doc was split or "
            "merged after the 'elmo' component. Run it again, after the retokenisation."
        )
