"""ONNX graphs of the parts of a biLM, built from configuration and weights without tracing."""

import itertools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from hf_elmo.configuration_elmo import ElmoConfig

OPSET = 18  # the oldest with Split into equal parts and ReduceMax with axes as an input
IR_VERSION = 9
# Largest value of a weight of 7 bits. Processors without VNNI add two products in 16 bits, which
# would overflow with larger weights.
LARGEST = 63
LARGE = 2**16  # bytes; initializers of this size or more are not copied into the message

Array: TypeAlias = npt.NDArray[Any]
Direction: TypeAlias = Literal["forward", "backward"]
Quantization: TypeAlias = Literal["int8"] | None


class Run(NamedTuple):
    """Names of the values that one direction computes.

    Attributes:
        layers: Output of each layer, shape `(tokens, batch, projection_size)`.
        h: Hidden state of all layers, shape `(layers, batch, projection_size)`.
        c: Cell state of all layers, shape `(layers, batch, cell_size)`.
    """

    layers: list[str]
    h: str
    c: str


class BuiltModel(NamedTuple):
    """Model that declares its large initializers without values, and these values by name."""

    model: ModelProto
    initializers: dict[str, Array]


def round_weight(weight: Array) -> tuple[Array, Array]:
    """Round a weight `(out, in)`: integers `(in, out)`, and the scale of each output `(out,)`."""
    scales = np.maximum(np.abs(weight).max(1), 1e-30) / np.float32(LARGEST)
    return np.rint(weight / scales[:, None]).astype(np.int8).T, scales


class Graph:
    """An ONNX graph under construction. Values are referred to by their names.

    Args:
        weights: Weights by name; the names of the biLM's weights are those in `ElmoModel`.
        quantization: `"int8"` for products of the LSTMs in 8 bits, with weights of 7 bits; None for
            float32.
        parent: For a loop body, the graph around it, which stores the initializers of both.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        quantization: Quantization = None,
        parent: "Graph | None" = None,
    ) -> None:
        self.weights = weights
        self.quantization = quantization
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, Array] = parent.initializers if parent else {}
        self.numbers: itertools.count[int] = parent.numbers if parent else itertools.count()

    def add(self, operator: str, *inputs: str, num_outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or a list of names of several outputs."""
        if operator == "Reshape":
            attributes["allowzero"] = 1  # a batch may have no words
        outputs = [f"{operator}_{next(self.numbers)}" for _ in range(num_outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, **attributes))
        return outputs if num_outputs > 1 else outputs[0]

    def add_named(self, operator: str, x: str, name: str) -> None:
        """Add a node whose output has a given name."""
        self.nodes.append(helper.make_node(operator, [x], [name]))

    def constant(self, value: Any, dtype: npt.DTypeLike = np.float32) -> str:
        """Add a small constant; return its name."""
        array = np.asarray(value, dtype)
        name = f"constant_{array.dtype}_{array.tolist()}"
        return self.initializer(name, array)

    def initializer(self, name: str, array: Array) -> str:
        """Add an initializer, unless its name exists; return the name."""
        if name not in self.initializers:
            self.initializers[name] = np.asarray(array, order="C")
        return name

    def get_array(self, name: str) -> Array:
        """Return a weight as a float32 array."""
        array: Array = self.weights[name].detach().float().numpy()
        return array

    def weight(self, name: str) -> str:
        """Add a weight in float32; return its name."""
        return self.initializer(name, self.get_array(name))

    def multiply(self, x: str, name: str, *addends: str, by_row: bool = False) -> str:
        """Compute `x @ weight^T` plus addends in the graph's precision.

        In 8 bits, each row of the weight has a scale. The scale of `x` is computed at run time.

        Args:
            x: Shape `(rows, in)`.
            name: Name of a weight of shape `(out, in)`.
            *addends: Shapes `(out,)` or `(rows, out)`. A graph in float32 allows only one addend.
            by_row: Whether each row of `x` has its own scale: more exact, and slower.
        """
        if self.quantization is None or "_lstm.layers." not in name:
            # Not transposed in memory, so that the weight is not copied.
            return str(self.add("Gemm", x, self.weight(name), *addends, transB=1))
        scales = f"{name}_scales"
        if scales not in self.initializers:
            rounded, factors = round_weight(self.get_array(name))
            self.initializer(scales, factors)
            self.initializer(f"{name}_8", rounded)
            self.initializer(f"{name}_zeros", np.zeros(len(factors), np.int8))
        if by_row:  # scale each row to a maximum of 1, so that one scale fits all rows
            axis = self.constant([-1], np.int64)
            largest = self.add("ReduceMax", self.add("Abs", x), axis)
            largest = self.add("Max", largest, self.constant(1e-30))
            x = self.add("Div", x, largest)
        rounded_x, scale_x, zero_x = self.add("DynamicQuantizeLinear", x, num_outputs=3)
        sums = self.add("MatMulInteger", rounded_x, f"{name}_8", zero_x, f"{name}_zeros")
        product = self.add("Cast", sums, to=TensorProto.FLOAT)
        product = self.add("Mul", product, self.add("Mul", scale_x, scales))
        if by_row:
            product = self.add("Mul", product, largest)
        for addend in addends:
            product = self.add("Add", product, addend)
        return str(product)

    def clip(self, x: str, bound: float | None) -> str:
        """Clip `x` to `[-bound, bound]`; None = no clipping."""
        if bound is None:
            return x
        return str(self.add("Clip", x, self.constant(-bound), self.constant(bound)))

    def make(
        self,
        name: str,
        inputs: list[Any],
        outputs: list[Any],
        *,
        inline: bool = False,
        opset: int = OPSET,
    ) -> ModelProto:
        """Make a model of the graph.

        Args:
            name: Name of the graph.
            inputs: Declared inputs.
            outputs: Declared outputs.
            inline: Whether the model contains its large initializers; else it only declares them,
                for `SessionOptions.add_external_initializers`.
            opset: Version of the ONNX operators.
        """
        large = {} if inline else self.large_initializers
        values = [_declare_external(*pair) for pair in large.items()]
        values += [
            numpy_helper.from_array(array, name)
            for name, array in self.initializers.items()
            if name not in large
        ]
        return helper.make_model(
            helper.make_graph(self.nodes, name, inputs, outputs, values),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=IR_VERSION,
            producer_name="spacy-elmo",
        )

    @property
    def large_initializers(self) -> dict[str, Array]:
        """Initializers that are too large to be copied into a message."""
        return {name: a for name, a in self.initializers.items() if a.nbytes >= LARGE}


def _declare_external(name: str, array: Array) -> TensorProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    value = TensorProto(name=name, data_type=kind, data_location=TensorProto.EXTERNAL)
    value.dims.extend(array.shape)
    value.external_data.add(key="location", value="memory")
    return value


def declare(name: str, kind: int, *shape: int | str) -> Any:
    """Declare an input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def encode_words(graph: Graph, config: ElmoConfig, ids: str, word_ids: str) -> str:
    """Encode the ids of words as vectors, shape `(words, projection_size)`.

    The formulas are those of `ElmoTokenEncoder`.

    Args:
        graph: The graph.
        config: Configuration of the biLM.
        ids: Character ids, shape `(words, characters)`; not used without characters.
        word_ids: Rows of the lexicon, shape `(words,)`; not used without a lexicon.
    """
    parts = []
    encoder = "token_encoder"

    def linear(x: str, name: str) -> str:
        return graph.multiply(x, f"{name}.weight", graph.weight(f"{name}.bias"))

    if config.word_embedding_size:
        table = graph.weight(f"{encoder}.word_embedding.weight")
        parts.append(graph.add("Gather", table, word_ids))
    if config.char_embedding_size:
        table = graph.weight(f"{encoder}.char_embedding.weight")
        x = graph.add("Transpose", graph.add("Gather", table, ids), perm=[0, 2, 1])
        maxima = []
        for number in range(len(config.char_filters or [])):
            name = f"{encoder}.char_convolutions.{number}"
            kernel, bias = graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias")
            axis = graph.constant([2], np.int64)
            convolved = graph.add("Conv", x, kernel, bias)
            maxima.append(graph.add("ReduceMax", convolved, axis, keepdims=0))
        x = graph.add("Concat", *maxima, axis=1)
        x = graph.add({"relu": "Relu", "tanh": "Tanh"}[config.char_activation], x)
        for number in range(config.num_highway_layers):
            name = f"{encoder}.highways.{number}"
            gate = graph.add("Sigmoid", linear(x, f"{name}.gate"))
            transform = linear(x, f"{name}.transform")
            change = graph.add("Sub", graph.add("Relu", transform), x)
            x = graph.add("Add", x, graph.add("Mul", gate, change))
        parts.append(x)
    x = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    if config.use_token_projection:
        return linear(x, f"{encoder}.projection")
    return str(x)


def run_direction(
    graph: Graph, config: ElmoConfig, direction: Direction, x: str, mask: str, h: str, c: str
) -> Run:
    """Run the layers of one direction over padded sentences.

    Args:
        graph: The graph.
        config: Configuration of the biLM.
        direction: Direction to run.
        x: Word vectors, shape `(tokens, batch, projection_size)`.
        mask: True where there is a word, shape `(tokens, batch, 1)`; the state of a sentence does
            not change elsewhere.
        h: Initial hidden state, shape `(layers, batch, projection_size)`.
        c: Initial cell state, shape `(layers, batch, cell_size)`.
    """
    layers, new_h, new_c = [], [], []
    shape = graph.add("Shape", x, start=0, end=2)  # tokens, batch
    for number in range(config.num_hidden_layers):
        layer = f"{direction}_lstm.layers.{number}"
        first_h, first_c = (
            graph.add("Gather", state, graph.constant(number, np.int64), axis=0) for state in (h, c)
        )
        bias = graph.get_array(f"{layer}.bias").copy()
        bias[config.cell_size : 2 * config.cell_size] += config.forget_bias
        graph.initializer(f"{layer}.bias", bias)
        flat = graph.add("Reshape", x, graph.constant([-1, config.projection_size], np.int64))
        # In 8 bits, the bias is added in the step: ONNX Runtime fuses no bias with scaled rows.
        bias_name = [f"{layer}.bias"]
        at_input, in_step = (bias_name, []) if graph.quantization is None else ([], bias_name)
        sums = graph.multiply(flat, f"{layer}.input_weight", *at_input, by_row=True)
        width = graph.constant([4 * config.cell_size], np.int64)
        sums = graph.add("Reshape", sums, graph.add("Concat", shape, width, axis=0))
        is_backward = [int(direction == "backward")]
        last_h, last_c, y = graph.add(
            "Scan",
            first_h,
            first_c,
            sums,
            mask,
            num_outputs=3,
            body=_make_step(graph, config, layer, [*in_step, "sums"]),
            num_scan_inputs=2,
            scan_input_directions=is_backward * 2,
            scan_output_directions=is_backward,
        )
        x = graph.add("Add", y, x) if config.use_residual and number else y
        axis = graph.constant([0], np.int64)
        new_h.append(graph.add("Unsqueeze", last_h, axis))
        new_c.append(graph.add("Unsqueeze", last_c, axis))
        layers.append(x)
    h, c = (graph.add("Concat", *states, axis=0) for states in (new_h, new_c))
    return Run(layers, h, c)


def _make_step(graph: Graph, config: ElmoConfig, layer: str, addends: list[str]) -> GraphProto:
    """Make one time step of a layer; the formula is that of `lstm_step`."""
    body = Graph(graph.weights, graph.quantization, graph)
    gates = body.multiply("h", f"{layer}.state_weight", *addends)
    i, f, o, j = body.add("Split", gates, num_outputs=4, axis=1)
    body.nodes[-1].attribute.append(helper.make_attribute("num_outputs", 4))
    i, f, o = (body.add("Sigmoid", gate) for gate in (i, f, o))
    kept, written = body.add("Mul", f, "c"), body.add("Mul", i, body.add("Tanh", j))
    cell = body.clip(body.add("Add", kept, written), config.cell_clip)
    output = body.add("Mul", o, body.add("Tanh", cell))
    if config.use_cell_projection:
        output = body.multiply(output, f"{layer}.projection_weight")
        output = body.clip(output, config.projection_clip)
    new_h = body.add("Where", "is_word", output, "h")
    new_c = body.add("Where", "is_word", cell, "c")
    p, d, number = config.projection_size, config.cell_size, TensorProto.FLOAT
    inputs = [
        declare("h", number, "batch", p),
        declare("c", number, "batch", d),
        declare("sums", number, "batch", 4 * d),
        declare("is_word", TensorProto.BOOL, "batch", 1),
    ]
    outputs = [
        declare(new_h, number, "batch", p),
        declare(new_c, number, "batch", d),
        declare(output, number, "batch", p),
    ]
    return helper.make_graph(body.nodes, f"{layer}.step", inputs, outputs)


def make_encoder(config: ElmoConfig, weights: Mapping[str, Tensor]) -> BuiltModel:
    """Make the model that computes the vectors of words (`vectors`) from their ids."""
    graph = Graph(weights)
    inputs = []
    if config.char_embedding_size:
        inputs.append(declare("input_ids", TensorProto.INT32, "words", "characters"))
    if config.word_embedding_size:
        inputs.append(declare("word_input_ids", TensorProto.INT32, "words"))
    vectors = encode_words(graph, config, "input_ids", "word_input_ids")
    graph.add_named("Identity", vectors, "vectors")
    outputs = [declare("vectors", TensorProto.FLOAT, "words", config.projection_size)]
    return BuiltModel(graph.make("encoder", inputs, outputs), graph.large_initializers)


def make_direction(
    config: ElmoConfig,
    weights: Mapping[str, Tensor],
    direction: Direction,
    quantization: Quantization,
) -> BuiltModel:
    """Make the model that computes the layers and the new state of one direction."""
    graph = Graph(weights, quantization)
    run = run_direction(graph, config, direction, "x", "is_word", "h", "c")
    names = [f"layer_{number}" for number in range(len(run.layers))]
    for name, value in zip([*names, "new_h", "new_c"], [*run.layers, run.h, run.c], strict=True):
        graph.add_named("Identity", value, name)
    p, d, number = config.projection_size, config.cell_size, TensorProto.FLOAT
    state = [("h", p), ("c", d)]
    inputs = [
        declare("x", number, "tokens", "batch", p),
        declare("is_word", TensorProto.BOOL, "tokens", "batch", 1),
        *(declare(name, number, len(names), "batch", width) for name, width in state),
    ]
    outputs = [
        *(declare(name, number, "tokens", "batch", p) for name in names),
        *(declare(f"new_{name}", number, len(names), "batch", width) for name, width in state),
    ]
    return BuiltModel(graph.make(direction, inputs, outputs), graph.large_initializers)
