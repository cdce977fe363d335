"""A scalar mix that a component learns, in thinc: from docs to one vector a token."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from spacy.tokens import Doc
from thinc.api import Model

from .architecture import Array, DocLayers, ThincModel, get_shim
from .segments import Segment

LayerNorm: TypeAlias = Literal["none", "sentence"]


class LearnedMix(NamedTuple):
    """What a component has learned of the layers (Peters et al. 2018, eq. 1).

    Attributes:
        shares: Of each layer in the sum, the word vectors first: `softmax(w)`.
        gamma: Factor of the sum.
    """

    shares: Array
    gamma: float


def make_mix(
    name: str,
    layer_norm: LayerNorm,
    dropout: float,
    l2: float,
    train_gamma: bool,
    learn_rate_scale: float,
) -> ThincModel:
    """Make a mix without a biLM: it has a `link` to one, or a layer that is one.

    Args:
        name: Of the thinc model.
        layer_norm: As for `make_elmo_listener`, like the rest.
        dropout: Likewise.
        l2: Likewise.
        train_gamma: Likewise.
        learn_rate_scale: Likewise.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"Expected dropout from 0 to below 1, got {dropout}.")
    return Model(
        name,
        forward,
        init=init,
        dims={"nO": None},
        params={"mix": None, "gamma": None},
        attrs={
            "position": "input",
            "layer_norm": layer_norm,
            "mix_dropout": dropout,  # spaCy sets whatever is called dropout_rate
            "l2": l2,
            "train_gamma": train_gamma,
            "learn_rate_scale": learn_rate_scale,
        },
    )


def init(model: ThincModel, X: Any = None, Y: Any = None) -> None:  # noqa: N803 (thinc's names)
    """Begin with the mean of the layers.

    Raises:
        ValueError: If there is no `elmo` component, or it has another width.
    """
    if model.layers:
        model.layers[0].initialize()
    bilm = model.layers[0] if model.layers else model.attrs["link"].get().model
    config = get_shim(bilm).load().model.config
    if model.has_dim("nO") and model.get_dim("nO") != config.hidden_size:
        raise ValueError(
            f"Expected width {config.hidden_size} of the ElmoListener, the width of its 'elmo' "
            f"component, got {model.get_dim('nO')}. Set it to null to have it found."
        )
    model.set_dim("nO", cast(int, config.hidden_size))
    model.set_param("mix", model.ops.alloc1f(config.num_mixed_layers))
    model.set_param("gamma", model.ops.alloc1f(1))


def get_mix(model: ThincModel) -> LearnedMix:
    """Return what a listener has learned so far.

    The parameters are distances from the mean of the layers and from a gamma of 1, so that they
    begin at zero and decay towards it; divided by `learn_rate_scale`, so that they learn faster.
    """
    scale = model.attrs["learn_rate_scale"]
    shares = model.ops.softmax(scale * model.get_param("mix"))
    return LearnedMix(shares, 1.0 + scale * float(model.get_param("gamma")[0]))


def forward(
    model: ThincModel, docs: Sequence[Doc], is_train: bool
) -> tuple[list[Array], Callable[[list[Array]], list[Doc]]]:
    """Mix the layers of docs.

    Args:
        model: What `make_elmo_listener` or `make_elmo_mix` makes.
        docs: Docs, empty ones included.
        is_train: Whether the mix drops out, and a biLM that is not frozen learns.

    Returns:
        Vectors of each doc, `(tokens, width)`, and a function that takes their gradients.

    Raises:
        ValueError: If there is no `elmo` component.
    """
    send: Callable[[list[Array]], None] | None = None
    if model.layers:
        read = model.layers[0].predict(docs)
    else:
        read, send = model.attrs["link"].get().read(docs, is_train=is_train)
    if not docs:
        return [], lambda gradients: []
    xp, attrs = model.ops.xp, model.attrs
    edges = list(accumulate(len(doc) for doc in docs))[:-1]
    layers = xp.concatenate([doc.layers for doc in read], axis=1)  # (layers, tokens, width)
    backprop_norm: Callable[[Array], Array] = _pass
    if attrs["layer_norm"] == "sentence":
        layers, backprop_norm = normalize_layers(xp, layers, _find_rows(read))
    mix = get_mix(model)
    total = xp.tensordot(mix.shares, layers, 1)  # (tokens, width)
    rate = attrs["mix_dropout"] if is_train else 0.0
    mask = model.ops.get_dropout_mask(total.shape, rate) if rate else 1.0

    def backprop(gradients: list[Array]) -> list[Doc]:
        gradient = xp.concatenate(gradients) * mask
        _learn_mix(model, mix, layers, total, gradient)
        if send is not None:
            d_layers = backprop_norm(mix.gamma * mix.shares[:, None, None] * gradient)
            send(xp.split(d_layers, edges, axis=1))
        return []

    return xp.split(mix.gamma * total * mask, edges), backprop


def _learn_mix(
    model: ThincModel, mix: LearnedMix, layers: Array, total: Array, gradient: Array
) -> None:
    """Add to the gradients of the mix.

    Args:
        model: The listener.
        mix: Its mix.
        layers: What was mixed, shape `(layers, tokens, width)`.
        total: Their weighted sum, shape `(tokens, width)`.
        gradient: Of `gamma * total`, shape `(tokens, width)`.
    """
    xp, attrs = model.ops.xp, model.attrs
    scale = attrs["learn_rate_scale"]
    d_shares = mix.gamma * xp.tensordot(layers, gradient, 2)  # (layers,)
    d_weights = mix.shares * (d_shares - xp.dot(mix.shares, d_shares))
    d_weights += 2 * attrs["l2"] * scale * model.get_param("mix")
    model.inc_grad("mix", scale * d_weights)
    if attrs["train_gamma"]:
        model.inc_grad("gamma", scale * xp.vdot(total, gradient).reshape(1))


def _pass(gradient: Array) -> Array:
    return gradient


def _find_rows(docs: Sequence[DocLayers]) -> list[Segment]:
    """Find the rows of each sentence where the tokens of docs stand one after the other."""
    starts = accumulate((doc.layers.shape[1] for doc in docs), initial=0)
    return [
        [start + row for row in rows]
        for doc, start in zip(docs, starts, strict=False)
        for rows in doc.segments
    ]


def normalize_layers(
    xp: Any, layers: Array, sentences: Sequence[Segment]
) -> tuple[Array, Callable[[Array], Array]]:
    """Normalize each layer to mean 0 and variance 1 over all numbers of each sentence.

    `elmo`'s original takes mean and variance over the batch (bilm/elmo.py, `weight_layers`), which
    lets a sentence depend on its neighbours.

    Args:
        xp: numpy or cupy.
        layers: Shape `(layers, tokens, width)`.
        sentences: Rows of the words of each sentence; other rows become zeros.

    Returns:
        The same shape, and a function from its gradient to that of `layers`.
    """
    from hf_elmo.scalar_mix import LAYER_NORM_EPSILON

    result = xp.zeros_like(layers)
    factors = []
    for rows in sentences:
        x = layers[:, rows]
        centred = x - x.mean(axis=(1, 2), keepdims=True)
        variance = xp.square(centred).mean(axis=(1, 2), keepdims=True)
        factors.append(1 / xp.sqrt(variance + LAYER_NORM_EPSILON))
        result[:, rows] = centred * factors[-1]

    def backprop(gradient: Array) -> Array:
        d_layers = xp.zeros_like(gradient)
        for rows, factor in zip(sentences, factors, strict=True):
            y, d_y = result[:, rows], gradient[:, rows]
            slope = (d_y * y).mean(axis=(1, 2), keepdims=True)
            d_layers[:, rows] = factor * (d_y - d_y.mean(axis=(1, 2), keepdims=True) - y * slope)
        return d_layers

    return result, backprop
