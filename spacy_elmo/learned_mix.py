"""Learned scalar mix in thinc: from docs to one vector per token."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from spacy.tokens import Doc
from thinc.api import torch2xp, xp2torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .architecture import Array, DocLayers, ThincModel, get_shim
from .segments import Segment

LayerNorm: TypeAlias = Literal["none", "sentence"]
# Adam changes a value by about its learning rate in each step, however steep the gradient is. At
# spaCy's 0.001, a mix would hardly leave its initial value, so it learns this many times faster.
LEARN_RATE_SCALE = 10.0


class LearnedMix(NamedTuple):
    """A learned mix (Peters et al. 2018, eq. 1).

    Attributes:
        shares: Weight of each layer in the sum, the word vectors first: softmax of the learned `w`.
        gamma: Factor of the weighted sum.
    """

    shares: Array
    gamma: float


def init(model: ThincModel, X: Any = None, Y: Any = None) -> None:  # noqa: N803 (thinc's names)
    """Set the mix to the mean of the layers.

    Raises:
        ValueError: If there is no `elmo` component, or its width is not the listener's.
    """
    if model.layers:
        bilm = model.layers[0]
        bilm.initialize()
        # As in a model built from the configuration. Samples of training docs have no sentences.
        if bilm.attrs["segment"] == "sents":
            bilm.attrs["segment"] = "auto"
    else:
        source = model.attrs["link"].get()
        source.is_initializing = True
        bilm = source.model
    config = get_shim(bilm).load().model.config
    if model.has_dim("nO") and model.get_dim("nO") != config.hidden_size:
        raise ValueError(
            f"Expected width {config.hidden_size} of the ElmoListener, the width of its 'elmo' "
            f"component, got {model.get_dim('nO')}. Set it to null to have it found."
        )
    model.set_dim("nO", config.output_size)
    model.set_param("mix", model.ops.alloc1f(config.num_mixed_layers))
    model.set_param("gamma", model.ops.alloc1f(1))


def get_mix(model: ThincModel) -> LearnedMix:
    """Return the mix of a listener.

    Parameters of zero give the mean of the layers and a gamma of 1. So the parameters start at zero
    and decay towards zero. They are stored divided by `learn_rate_scale`, to learn faster.
    """
    scale = model.attrs["learn_rate_scale"]
    shares = model.ops.softmax(scale * model.get_param("mix"))
    return LearnedMix(shares, 1.0 + scale * float(model.get_param("gamma")[0]))


def forward(
    model: ThincModel, docs: Sequence[Doc], is_train: bool
) -> tuple[list[Array], Callable[[list[Array]], list[Doc]]]:
    """Mix the layers of docs; apply dropout in training.

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
    xp, scale = model.ops.xp, model.attrs["learn_rate_scale"]
    edges = list(accumulate(len(doc) for doc in docs))[:-1]
    arrays = [xp.concatenate([doc.layers for doc in read], axis=1), model.get_param("mix")]
    arrays.append(model.get_param("gamma"))
    # The default device of thinc may be another one in this thread.
    is_cpu = model.ops.device_type == "cpu"
    device = torch.device("cpu" if is_cpu else f"cuda:{arrays[1].device.id}")
    layers, mix, gamma = (xp2torch(x, requires_grad=is_train, device=device) for x in arrays)
    with torch.set_grad_enabled(is_train):
        rows = _find_rows(read) if model.attrs["layer_norm"] == "sentence" else []
        vectors = mix_tokens(layers, scale * mix, 1 + scale * gamma, rows)
    rate = model.attrs["mix_dropout"] if is_train else 0.0
    mask = model.ops.get_dropout_mask(tuple(vectors.shape), rate) if rate else 1.0

    def backprop(gradients: list[Array]) -> list[Doc]:
        gradient = xp2torch(xp.concatenate(gradients) * mask, device=device).to(vectors.dtype)
        inputs = [mix, gamma] if send is None else [mix, gamma, layers]
        grads = torch.autograd.grad(vectors, inputs, gradient, retain_graph=True)
        results: list[Any] = [torch2xp(x) for x in grads]
        d_mix, d_gamma, *d_layers = results
        if not model.has_grad("mix") or not model.get_grad("mix").any():  # once per step
            d_mix = d_mix + 2 * model.attrs["l2"] * scale**2 * model.get_param("mix")
        model.inc_grad("mix", d_mix)
        if model.attrs["train_gamma"]:
            model.inc_grad("gamma", d_gamma)
        if send is not None:
            send(xp.split(d_layers[0], edges, axis=1))
        return []

    return xp.split(torch2xp(vectors) * mask, edges), backprop


def mix_tokens(
    layers: Tensor, weights: Tensor, gamma: Tensor, sentences: Sequence[Segment]
) -> Tensor:
    """Mix the layers of each token.

    Layer norm is over each sentence. In bilm-tf (bilm/elmo.py, `weight_layers`), it is over the
    batch, so the vectors of a sentence depend on other sentences.

    Args:
        layers: Shape `(layers, tokens, width)`, zeros for white space.
        weights: Weights before the softmax, shape `(layers,)`.
        gamma: Factor of the weighted sum, shape `(1,)`.
        sentences: Rows of each sentence's words, for layer norm; empty = no layer norm.

    Returns:
        Shape `(tokens, width)`.
    """
    from hf_elmo.scalar_mix import mix_layers

    if not sentences:
        return mix_layers(layers[:, None], weights, gamma)[0]
    rows = [torch.tensor(rows, device=layers.device) for rows in sentences]
    mask = pad_sequence([torch.ones_like(x, dtype=torch.bool) for x in rows], batch_first=True)
    padded = layers[:, pad_sequence(rows, batch_first=True)]  # (layers, sentences, words, width)
    mixed = mix_layers(padded, weights, gamma, layer_norm="sentence", mask=mask)[mask]
    return torch.zeros_like(layers[0]).index_put((torch.cat(rows),), mixed)


def _find_rows(docs: Sequence[DocLayers]) -> list[Segment]:
    """Find the rows of each sentence in the concatenated tokens of docs."""
    starts = accumulate((doc.layers.shape[1] for doc in docs), initial=0)
    return [
        [start + row for row in rows]
        for doc, start in zip(docs, starts, strict=False)
        for rows in doc.segments
    ]
