"""Heads in an ONNX graph: scalar mixes, logits of words and of sentences."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from hf_elmo.scalar_mix import LAYER_NORM_EPSILON

from .graph import Array, Graph, declare

NEGATIVE = -3e38  # below all values, so that a maximum ignores it


class Layers(NamedTuple):
    """Names of the values that a biLM computes for a batch.

    Attributes:
        layers: Shape `(layers, batch, tokens, width)`, zero at padding.
        is_word: True at words, shape `(batch, tokens, 1)`.
    """

    layers: str
    is_word: str


class Output(NamedTuple):
    """An output of a graph: its name, the name of its value, and its axes."""

    name: str
    value: str
    shape: tuple[int | str, ...]


def mix_layers(
    graph: Graph, bilm: Layers, weights: Array, gamma: float, layer_norm: str = "none"
) -> str:
    """Mix the layers as `hf_elmo.scalar_mix.mix_layers` does, shape `(batch, tokens, width)`."""
    layers = bilm.layers
    if layer_norm != "none":
        keep = graph.add("Cast", bilm.is_word, to=TensorProto.FLOAT)
        axes = graph.constant([2, 3] if layer_norm == "sentence" else [1, 2, 3], np.int64)
        keep = graph.add("Unsqueeze", keep, graph.constant([0], np.int64))

        def average(x: str) -> str:
            return str(graph.add("Div", graph.add("ReduceSum", x, axes, keepdims=1), count))

        ones = graph.add("Expand", keep, graph.add("Shape", layers))
        ones = graph.add("ReduceSum", ones, axes, keepdims=1)
        count = graph.add("Max", ones, graph.constant(1))
        layers = graph.add("Mul", graph.add("Sub", layers, average(layers)), keep)
        variance = average(graph.add("Mul", layers, layers))
        deviation = graph.add(
            "Sqrt", graph.add("Add", variance, graph.constant(LAYER_NORM_EPSILON))
        )
        layers = graph.add("Div", layers, deviation)
    shares = np.exp(weights - weights.max())
    shares = (shares / shares.sum() * gamma).astype(np.float32).reshape(-1, 1, 1, 1)
    weighted = graph.add("Mul", layers, graph.constant(shares))
    return str(graph.add("ReduceSum", weighted, graph.constant([0], np.int64), keepdims=0))


def mix_features(graph: Graph, config: Any, bilm: Layers) -> list[str]:
    """Mix the layers once with each scalar mix of `ElmoFeatures`."""
    mixes: list[str] = []
    while f"features.scalar_mixes.{len(mixes)}.gamma" in graph.weights:
        name = f"features.scalar_mixes.{len(mixes)}"
        weights, (gamma,) = graph.get_array(f"{name}.weights"), graph.get_array(f"{name}.gamma")
        mixes.append(mix_layers(graph, bilm, weights, gamma, config.mix_layer_norm))
    return mixes


def join(graph: Graph, parts: Sequence[str]) -> str:
    """Join vectors of shape `(..., width)` along the last axis."""
    return parts[0] if len(parts) == 1 else str(graph.add("Concat", *parts, axis=-1))


def classify(graph: Graph, x: str) -> str:
    """Compute `classifier(x)` for `x` of shape `(..., width)`."""
    weight = graph.initializer("classifier", graph.get_array("classifier.weight").T)
    return str(graph.add("Add", graph.add("MatMul", x, weight), graph.weight("classifier.bias")))


def label_words(graph: Graph, config: Any, bilm: Layers) -> list[Output]:
    """Compute the logits of `ElmoForTokenClassification`."""
    logits = classify(graph, join(graph, mix_features(graph, config, bilm)))
    return [Output("logits", logits, ("batch", "tokens", config.num_labels))]


def label_sentences(graph: Graph, config: Any, bilm: Layers) -> list[Output]:
    """Compute the logits of `ElmoForSequenceClassification`."""
    x = join(graph, mix_features(graph, config, bilm))
    axis, zero = graph.constant([1], np.int64), graph.constant(0)
    lengths = graph.add("Cast", bilm.is_word, to=TensorProto.FLOAT)
    lengths = graph.add("ReduceSum", lengths, axis, keepdims=0)  # (batch, 1)
    if config.classifier_pooling == "mean":
        sums = graph.add("ReduceSum", graph.add("Where", bilm.is_word, x, zero), axis, keepdims=0)
        pooled = graph.add("Div", sums, graph.add("Max", lengths, graph.constant(1)))
    else:
        x = graph.add("Where", bilm.is_word, x, graph.constant(NEGATIVE))
        pads = graph.constant([0, 0, 0, 0, 1, 0], np.int64)  # ReduceMax needs at least one row
        x = graph.add("Pad", x, pads, graph.constant(NEGATIVE))
        has_words = graph.add("Greater", lengths, zero)
        pooled = graph.add("ReduceMax", x, axis, keepdims=0)
        pooled = graph.add("Where", has_words, pooled, zero)
    return [Output("logits", classify(graph, pooled), ("batch", config.num_labels))]


HEADS = {
    "ElmoForTokenClassification": label_words,
    "ElmoForSequenceClassification": label_sentences,
}


def declare_outputs(graph: Graph, outputs: Sequence[Output]) -> list[Any]:
    """Name the value of each output like the output, and declare the outputs."""
    for name, value, _ in outputs:
        graph.add_named("Identity", value, name)
    return [declare(name, TensorProto.FLOAT, *shape) for name, _, shape in outputs]
