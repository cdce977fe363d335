"""A biLM as one ONNX file: ids in, layers and their mix out."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto, TensorProto, helper

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.files.output_file import check_output_file, replace
from hf_elmo.modeling_elmo import ElmoModel

from .graph import OPSET, Array, Graph, Quantization, declare, encode_words, run_direction
from .support import find_problem

TOLERANCE = 1e-3  # of the check against PyTorch in float32: layers of the original size reach 1e-4
MIN_COSINE = 0.99  # of the check in 8 bits
MAX_BYTES = 2**31 - 2**20  # of a file of protocol buffers; larger weights go into a second file
CHECKED_LENGTHS = (5, 2)  # words of the two sentences of the check


def export_onnx(
    model: ElmoModel,
    path: str | Path,
    *,
    quantization: Quantization = None,
    opset: int = OPSET,
    overwrite: bool = False,
) -> None:
    """Write a biLM as a self-contained ONNX file.

    Inputs: `input_ids (batch, tokens, characters)`, `word_input_ids (batch, tokens)` if there is a
    lexicon, both int64, and `attention_mask (batch, tokens)`, int64: 1 for each word. Padding may
    be on either side. Outputs, in float32: `hidden_states (layers + 1, batch, tokens, hidden_size)`
    and `elmo (batch, tokens, hidden_size)`, zero at padding. The boundary tokens are inside.

    The file is checked against PyTorch on two sentences before it gets its name.

    Args:
        model: An unmodified biLM on the CPU.
        path: File to write, usually `model.onnx`.
        quantization: `"int8"` for 8-bit weights of the LSTMs, `"int7"` for 7 bits, which do not
            saturate on processors without VNNI, or None for float32.
        opset: Version of the ONNX operators, 18 or later.
        overwrite: Whether to replace an existing file.

    Raises:
        ValueError: If the model cannot be exported.
        FileExistsError: If the file exists and `overwrite` is false.
        OSError: If the file cannot be written.
    """
    path = Path(path)
    check_output_file(path, overwrite=overwrite)
    model = _check_exportable(model, opset)
    graph, proto = _make_graph(model, quantization, opset)
    size = sum(array.nbytes for array in graph.initializers.values())
    if size > MAX_BYTES:
        raise ValueError(
            f"Expected weights of at most {MAX_BYTES:,} bytes in one ONNX file, got {size:,}."
        )
    onnx.checker.check_model(proto)
    serialized = proto.SerializeToString()
    _check_outputs(model, serialized, quantization)
    with replace(path) as temporary:
        temporary.write_bytes(serialized)


def _check_exportable(model: ElmoModel, opset: int) -> ElmoModel:
    if not isinstance(model, ElmoModel):
        raise ValueError(
            f"Expected an ElmoModel to export, got {type(model).__name__}. Heads cannot be "
            "exported yet: export the biLM with ElmoModel.from_pretrained(name)."
        )
    problem = find_problem(model)
    if problem:
        raise ValueError(f"Expected a model that can be exported, got {problem}.")
    if model.config.mix_layer_norm != "none":
        raise ValueError(
            f'Expected mix_layer_norm "none", got {model.config.mix_layer_norm!r}. Export with '
            '"none", and mix hidden_states outside of the graph.'
        )
    if opset < OPSET:
        raise ValueError(f"Expected an opset of at least {OPSET}, got {opset}.")
    return model


def _make_graph(
    model: ElmoModel, quantization: Quantization, opset: int
) -> tuple[Graph, ModelProto]:
    """Make the graph of a whole biLM."""
    config = model.config
    graph = Graph(model.state_dict(), quantization)
    inputs = []
    shape = ("batch", "tokens")
    if config.char_embedding_size:
        width = config.max_characters_per_token
        inputs.append(declare("input_ids", TensorProto.INT64, *shape, width))
    if config.word_embedding_size:
        inputs.append(declare("word_input_ids", TensorProto.INT64, *shape))
    inputs.append(declare("attention_mask", TensorProto.INT64, *shape))
    words = _encode_batch(graph, config)
    # <S> is the first time step and </S> the last, wherever the padding is: the state does not
    # change between them and the words.
    with torch.no_grad():
        boundaries = model.encode_boundaries().numpy()
    start, end = (
        graph.add("Expand", graph.initializer(name, vector), _make_shape(graph, config))
        for name, vector in zip(("<S>", "</S>"), boundaries, strict=True)
    )
    ones = graph.add("Transpose", "attention_mask", perm=[1, 0])
    ones = graph.add("Unsqueeze", ones, graph.constant([2], np.int64))  # (tokens, batch, 1)
    is_word = graph.add("Cast", ones, to=TensorProto.BOOL)
    pads = graph.constant([1, 0, 0, 1, 0, 0], np.int64)
    framed = graph.add("Pad", ones, pads, graph.constant(1, np.int64))
    mask = graph.add("Cast", framed, to=TensorProto.BOOL)
    x = graph.add("Concat", start, words, end, axis=0)
    layers = _run_directions(graph, config, x, mask)
    _add_outputs(graph, config, [(x,) * len(layers[0]), *layers], is_word)
    width = config.hidden_size
    outputs = [
        declare("hidden_states", TensorProto.FLOAT, config.num_mixed_layers, *shape, width),
        declare("elmo", TensorProto.FLOAT, *shape, width),
    ]
    proto = graph.make("elmo", inputs, outputs, inline=True, opset=opset)
    settings = {"config": config.to_json_string(use_diff=False), "quantization": quantization or ""}
    helper.set_model_props(proto, settings)
    return graph, proto


def _add_outputs(
    graph: Graph, config: ElmoConfig, layers: list[tuple[str, ...]], is_word: str
) -> None:
    """Join the directions, drop the boundaries, and mix; set both outputs."""
    cut = [graph.constant(value, np.int64) for value in ([1], [-1], [0])]
    first_axis = graph.constant([0], np.int64)
    rows = []
    for parts in layers:
        of_words = graph.add("Slice", graph.add("Concat", *parts, axis=2), *cut)
        of_words = graph.add("Where", is_word, of_words, graph.constant(0))
        rows.append(
            graph.add("Unsqueeze", graph.add("Transpose", of_words, perm=[1, 0, 2]), first_axis)
        )
    stacked = graph.add("Concat", *rows, axis=0)
    weights = torch.tensor(config.initial_mix_weights).softmax(0) * config.mix_gamma
    mix = graph.initializer("mix", weights.float().numpy().reshape(-1, 1, 1, 1))
    elmo = graph.add("ReduceSum", graph.add("Mul", stacked, mix), first_axis, keepdims=0)
    for value, name in ((stacked, "hidden_states"), (elmo, "elmo")):
        graph.nodes.append(helper.make_node("Identity", [value], [name]))


def _make_shape(graph: Graph, config: ElmoConfig) -> str:
    """Return the shape `(1, batch, projection_size)`."""
    batch = graph.add("Shape", "attention_mask", start=0, end=1)
    one, width = (graph.constant([n], np.int64) for n in (1, config.projection_size))
    return str(graph.add("Concat", one, batch, width, axis=0))


def _encode_batch(graph: Graph, config: ElmoConfig) -> str:
    """Encode the words of a batch, shape `(tokens, batch, projection_size)`."""
    ids = word_ids = ""
    if config.char_embedding_size:
        flat = graph.constant([-1, config.max_characters_per_token], np.int64)
        ids = graph.add("Reshape", "input_ids", flat)
    if config.word_embedding_size:
        word_ids = graph.add("Reshape", "word_input_ids", graph.constant([-1], np.int64))
    words = encode_words(graph, config, ids, word_ids)
    shape = graph.add("Shape", "attention_mask")
    width = graph.constant([config.projection_size], np.int64)
    words = graph.add("Reshape", words, graph.add("Concat", shape, width, axis=0))
    return str(graph.add("Transpose", words, perm=[1, 0, 2]))


def _run_directions(graph: Graph, config: ElmoConfig, x: str, mask: str) -> list[tuple[str, ...]]:
    """Run the directions from zero states; return each layer, a tensor for each direction."""
    batch = graph.add("Shape", "attention_mask", start=0, end=1)
    states = []
    for width in (config.projection_size, config.cell_size):
        layers, size = (graph.constant([n], np.int64) for n in (config.num_hidden_layers, width))
        shape = graph.add("Concat", layers, batch, size, axis=0)
        states.append(graph.add("Expand", graph.constant(0), shape))
    runs = [
        run_direction(graph, config, direction, x, mask, *states).layers
        for direction in (("forward", "backward") if config.bidirectional else ("forward",))
    ]
    return list(zip(*runs, strict=True))


def _check_outputs(model: ElmoModel, serialized: bytes, quantization: Quantization) -> None:
    """Compare a file's outputs with PyTorch's on two sentences of random ids.

    Raises:
        ValueError: If they differ.
    """
    config = model.config
    generator = torch.Generator().manual_seed(0)
    shape = (len(CHECKED_LENGTHS), max(CHECKED_LENGTHS))
    mask = (torch.arange(shape[1]) < torch.tensor(CHECKED_LENGTHS)[:, None]).long()
    inputs = {"attention_mask": mask}
    if config.char_embedding_size:
        size = (*shape, config.max_characters_per_token)
        ids = torch.randint(1, config.char_vocab_size, size, generator=generator)
        inputs["input_ids"] = ids * mask[..., None]
    if config.word_embedding_size:
        ids = torch.randint(1, config.word_vocab_size, shape, generator=generator)
        inputs["word_input_ids"] = ids * mask
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
    expected = torch.stack(out.hidden_states).numpy()
    session = onnxruntime.InferenceSession(serialized, providers=["CPUExecutionProvider"])
    actual, _ = session.run(None, {name: ids.numpy() for name, ids in inputs.items()})
    if not _is_near(actual, expected, quantization):
        raise ValueError(
            "Expected the exported graph to compute what PyTorch computes; its layers differ by "
            f"{np.abs(actual - expected).max():.2g}. Nothing was written. Please report this."
        )


def _is_near(actual: Array, expected: Array, quantization: Quantization) -> bool:
    if quantization is None:
        return bool(np.abs(actual - expected).max() <= TOLERANCE)
    lengths = np.linalg.norm(actual) * np.linalg.norm(expected)
    return bool((actual * expected).sum() >= MIN_COSINE * lengths)
