"""What ELMo knows of a doc, as `doc._`, `span._` and `token._`.

Each is computed from the doc's own data, by functions that a pickle can name, so that they live on
in other processes and in docs that were stored.
"""

from spacy.tokens import Doc, Span, Token

from .architecture import Array

# Keys of `doc.user_data`.
LAYERS_KEY = "elmo_layers"
VECTORS_KEY = "elmo_vectors"  # where doc.tensor is not ours to set


def register_extensions() -> None:
    """Add ELMo's attributes to all docs, spans and tokens.

    The `elmo` component does this; call it to read stored docs without a pipeline.
    """
    Doc.set_extension("elmo_layers", getter=get_layers, setter=set_layers, force=True)
    Doc.set_extension("elmo_vectors", getter=get_vectors, setter=set_vectors, force=True)
    for kind in (Doc, Span):
        kind.set_extension("elmo", getter=get_mean_vector, force=True)
    Token.set_extension("elmo", getter=get_token_vector, force=True)


def get_layers(doc: Doc) -> Array:
    """Give all layers of each token, shape `(layers, tokens, width)`; `doc._.elmo_layers`.

    Layer 0 holds the word vectors, which do not know their context; white space has zeros.

    Raises:
        ValueError: If they were not stored, or the doc's tokens have changed since.
    """
    layers = doc.user_data.get(LAYERS_KEY)
    if layers is None:
        raise ValueError(
            "This doc holds no ELMo layers: run the 'elmo' component with store_layers = true."
        )
    _check_num_tokens(doc, layers.shape[1])
    return layers


def set_layers(doc: Doc, layers: Array) -> None:
    """Store all layers of each token, shape `(layers, tokens, width)`."""
    doc.user_data[LAYERS_KEY] = layers


def get_vectors(doc: Doc) -> Array:
    """Give the vector of each token, shape `(tokens, width)`; `doc._.elmo_vectors`.

    It is `doc.tensor`, unless another component's vectors have to be there.

    Raises:
        ValueError: If the doc has none, or its tokens have changed since.
    """
    vectors = doc.user_data.get(VECTORS_KEY, doc.tensor)
    if vectors is None or (len(doc) and not vectors.size):
        raise ValueError(
            "This doc holds no ELMo vectors: run the 'elmo' component, with set_tensor = true or "
            "'auto'. Docs that went through a DocBin have lost their tensor."
        )
    _check_num_tokens(doc, len(vectors))
    return vectors


def set_vectors(doc: Doc, vectors: Array | None) -> None:
    """Store the vector of each token beside `doc.tensor`, or None if there shall be none."""
    doc.user_data[VECTORS_KEY] = vectors


def get_mean_vector(piece: Doc | Span) -> Array:
    """Average the vectors of the words, white space left out; `doc._.elmo`, `span._.elmo`.

    `doc.vector` and `span.vector` count white space in, which makes them shorter.
    """
    doc = piece.doc
    start, end = (piece.start, piece.end) if isinstance(piece, Span) else (0, len(doc))
    num_words = sum(not token.is_space for token in piece)
    total = get_vectors(doc)[start:end].sum(axis=0)
    return total / max(num_words, 1)


def get_token_vector(token: Token) -> Array:
    """Give the vector of a token, shape `(width,)`; `token._.elmo`."""
    return get_vectors(token.doc)[token.i]


def _check_num_tokens(doc: Doc, num_rows: int) -> None:
    if num_rows != len(doc):
        raise ValueError(
            f"Expected ELMo vectors for {len(doc)} tokens, got {num_rows}: the doc was split or "
            "merged after the 'elmo' component. Run it again, after the retokenisation."
        )
