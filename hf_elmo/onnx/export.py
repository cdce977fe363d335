"""Export a model as one ONNX file, which computes layers and mix, or a head's logits, from ids."""

import tempfile
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto, TensorProto, helper
from torch import Tensor

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.files.output_file import check_output_file, find_place
from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.modeling_elmo import ElmoModel

from .graph import OPSET, Array, Graph, Quantization, declare, encode_words, run_direction
from .heads import HEADS, Layers, Output, declare_outputs, mix_layers
from .support import find_problem

MAX_OPSET = 23  # ONNX Runtime 1.22, the oldest that is tested, runs it
TOLERANCE = 1e-3  # difference from PyTorch in float32; it reaches 1e-4 at the original size
MIN_COSINE = 0.99  # between outputs in 8 bits and PyTorch's
MAX_BYTES = 2**31 - 2**20  # limit of a protocol-buffer file; a larger model has a second file
CHECKED_LENGTHS = (5, 2)  # words of the two sentences of the check


def export_onnx(
    model: ElmoPreTrainedModel,
    path: str | Path,
    *,
    quantization: Quantization = None,
    opset: int = OPSET,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model as a self-contained ONNX file.

    Inputs, int64: `input_ids (batch, tokens, characters)`, `word_input_ids (batch, tokens)` if
    there is a lexicon, and `attention_mask (batch, tokens)`: 1 for each word. Padding may be on
    either side. The graph adds the boundary tokens itself.

    Outputs are float32. A biLM has `hidden_states (layers + 1, batch, tokens, hidden_size)` and
    `elmo (batch, tokens, hidden_size)`, zero at padding. `ElmoForTokenClassification` has
    `logits (batch, tokens, labels)`. `ElmoForSequenceClassification` has `logits (batch, labels)`.

    The file is written only if its first output for two sentences agrees with PyTorch's. A model
    above 2 GB stores its weights in a second file, `<path>_data`.

    Args:
        model: An unmodified model on the CPU: a biLM or one of these heads.
        path: File to write, usually `model.onnx`. A symbolic link is kept: the file to which it
            points is written.
        quantization: `"int8"` for products of the LSTMs in 8 bits, or None for float32.
        opset: Version of the ONNX operators, 18 or later.
        metadata: Entries to store in addition to the configuration, such as the licence.
        overwrite: Whether to replace an existing file.

    Raises:
        ValueError: If the model cannot be exported, or the output of the graph is wrong.
        FileExistsError: If the file exists and `overwrite` is false, or if it is a device.
        OSError: If the file cannot be written, or its name is not UTF-8.
    """
    path = find_place(Path(path))
    data = path.with_name(f"{path.name}_data")
    for output in (path, data):
        check_output_file(output, overwrite=overwrite)
    _check_exportable(model, opset)
    proto = _make_model(model, quantization, opset)
    config = copy(model.config)
    config.name_or_path = ""  # a path of this computer
    settings = {
        "config": config.to_json_string(use_diff=False),
        "architecture": type(model).__name__,
    }
    settings |= {"quantization": quantization or "", **(metadata or {})}
    helper.set_model_props(proto, settings)
    large = proto.ByteSize() > MAX_BYTES
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        written = Path(folder, path.name)
        onnx.save_model(proto, written, save_as_external_data=large, location=data.name)
        onnx.checker.check_model(written)
        _check_outputs(model, written, quantization)
        if large:
            Path(folder, data.name).replace(data)
        written.replace(path)


def _check_exportable(model: ElmoPreTrainedModel, opset: int) -> None:
    name = type(model).__name__
    if not isinstance(model, ElmoModel) and name not in HEADS:
        raise ValueError(
            f"Expected an ElmoModel or {', '.join(HEADS)} to export, got {name}. Export its biLM: "
            "ElmoModel.from_pretrained(name)."
        )
    problem = find_problem(cast(ElmoModel, model.base_model))
    if model.dtype != torch.float32:
        problem = problem or f"one in {model.dtype}. Call model.float() first"
    if problem or model.training:
        problem = problem or "one in training mode"
        raise ValueError(f"Expected a model that can be exported, got {problem}.")
    if not OPSET <= opset <= MAX_OPSET:
        raise ValueError(f"Expected an opset from {OPSET} to {MAX_OPSET}, got {opset}.")


def _make_model(model: Any, quantization: Quantization, opset: int) -> ModelProto:
    """Make the graph of a model."""
    head = HEADS.get(type(model).__name__)
    config = model.config
    weights = {name.removeprefix("elmo."): w for name, w in model.state_dict().items()}
    graph = Graph(weights, quantization)
    inputs = [
        declare(name, TensorProto.INT64, *shape) for name, shape in _list_inputs(model).items()
    ]
    bilm = _run_bilm(graph, config, model.base_model)
    if head is not None:
        outputs = head(graph, config, bilm)
    else:
        shape = ("batch", "tokens", config.hidden_size)
        mix = np.array(config.initial_mix_weights)
        mixed = mix_layers(graph, bilm, mix, config.mix_gamma, config.mix_layer_norm)
        outputs = [
            Output("hidden_states", bilm.layers, (config.num_mixed_layers, *shape)),
            Output("elmo", mixed, shape),
        ]
    declared = declare_outputs(graph, outputs)
    return graph.make("elmo", inputs, declared, inline=True, opset=opset)


def _list_inputs(model: Any) -> dict[str, tuple[int | str, ...]]:
    """List the inputs that a model reads, with their axes."""
    config = model.config
    shape = ("batch", "tokens")
    inputs: dict[str, tuple[int | str, ...]] = {"attention_mask": shape}
    if config.char_embedding_size:
        inputs["input_ids"] = (*shape, config.max_characters_per_token)
    if config.word_embedding_size:
        inputs["word_input_ids"] = shape
    return inputs


def _run_bilm(graph: Graph, config: ElmoConfig, bilm: Any) -> Layers:
    """Run the biLM over a batch."""
    ids, axis = "", graph.constant([2], np.int64)
    if config.char_embedding_size:
        flat = graph.constant([-1, config.max_characters_per_token], np.int64)
        ids = graph.add("Reshape", "input_ids", flat)
    is_word = graph.add("Cast", "attention_mask", to=TensorProto.BOOL)
    is_word = graph.add("Unsqueeze", is_word, axis)  # (batch, tokens, 1)
    words = _encode_batch(graph, config, ids)
    # <S> is always the first time step and </S> the last. Padding in between is harmless, because
    # it does not change the state.
    with torch.no_grad():
        boundaries = bilm.encode_boundaries().numpy()
    batch = graph.add("Shape", "attention_mask", start=0, end=1)
    one, width = (graph.constant([n], np.int64) for n in (1, config.projection_size))
    shape = graph.add("Concat", one, batch, width, axis=0)
    start, end = (
        graph.add("Expand", graph.initializer(name, vector), shape)
        for name, vector in zip(("<S>", "</S>"), boundaries, strict=True)
    )
    ones = graph.add("Transpose", "attention_mask", perm=[1, 0])
    ones = graph.add("Unsqueeze", ones, axis)  # (tokens, batch, 1)
    pads = graph.constant([1, 0, 0, 1, 0, 0], np.int64)
    framed = graph.add("Pad", ones, pads, graph.constant(1, np.int64))
    mask = graph.add("Cast", framed, to=TensorProto.BOOL)
    x = graph.add("Concat", start, words, end, axis=0)
    layers = _run_directions(graph, config, x, mask)
    return Layers(_stack_layers(graph, [(x,) * len(layers[0]), *layers], is_word), is_word)


def _encode_batch(graph: Graph, config: ElmoConfig, ids: str) -> str:
    """Encode the words of a batch, shape `(tokens, batch, projection_size)`."""
    word_ids = ""
    if config.word_embedding_size:
        word_ids = graph.add("Reshape", "word_input_ids", graph.constant([-1], np.int64))
    words = encode_words(graph, config, ids, word_ids)
    shape = graph.add("Shape", "attention_mask")
    width = graph.constant([config.projection_size], np.int64)
    words = graph.add("Reshape", words, graph.add("Concat", shape, width, axis=0))
    return str(graph.add("Transpose", words, perm=[1, 0, 2]))


def _run_directions(graph: Graph, config: ElmoConfig, x: str, mask: str) -> list[tuple[str, ...]]:
    """Run the directions from zero states; return each layer as one tensor per direction."""
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


def _stack_layers(graph: Graph, layers: list[tuple[str, ...]], is_word: str) -> str:
    """Join the directions and drop the boundaries, shape `(layers, batch, tokens, width)`."""
    cut = [graph.constant(value, np.int64) for value in ([1], [-1], [0])]
    first_axis = graph.constant([0], np.int64)
    rows = []
    for parts in layers:
        of_words = graph.add("Slice", graph.add("Concat", *parts, axis=2), *cut)
        of_words = graph.add("Transpose", of_words, perm=[1, 0, 2])
        of_words = graph.add("Where", is_word, of_words, graph.constant(0))
        rows.append(graph.add("Unsqueeze", of_words, first_axis))
    return str(graph.add("Concat", *rows, axis=0))


def _check_outputs(model: Any, path: Path, quantization: Quantization) -> None:
    """Compare a file's first output with PyTorch's on two sentences of random ids.

    Raises:
        ValueError: If they differ.
    """
    inputs = _draw_inputs(model)
    with torch.no_grad():
        out = model(
            **inputs, **({"output_hidden_states": True} if type(model) is ElmoModel else {})
        )
    expected = torch.stack(out.hidden_states) if isinstance(model, ElmoModel) else out.logits
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    actual = session.run(None, {name: ids.numpy() for name, ids in inputs.items()})[0]
    if not _is_near(actual, expected.numpy(), quantization):
        raise ValueError(
            "Expected the exported graph to compute what PyTorch computes; its outputs differ by "
            f"{np.abs(actual - expected.numpy()).max():.2g}. Nothing was written. Please report "
            "this."
        )


def _draw_inputs(model: Any) -> dict[str, Tensor]:
    """Draw the ids of two sentences of different lengths."""
    config = model.config
    sizes = {"input_ids": config.char_vocab_size, "word_input_ids": config.word_vocab_size}
    generator = torch.Generator().manual_seed(0)
    tokens = max(CHECKED_LENGTHS)
    mask = (torch.arange(tokens) < torch.tensor(CHECKED_LENGTHS)[:, None]).long()
    known = {"batch": len(CHECKED_LENGTHS), "tokens": tokens}
    inputs = {"attention_mask": mask}
    for name, axes in _list_inputs(model).items():
        if name not in inputs:
            shape = [axis if isinstance(axis, int) else known[axis] for axis in axes]
            ids = torch.randint(1, sizes[name], shape, generator=generator)
            inputs[name] = ids * mask.view(*mask.shape, *[1] * (len(shape) - 2))
    return inputs


def _is_near(actual: Array, expected: Array, quantization: Quantization) -> bool:
    if quantization is None:
        return bool(np.abs(actual - expected).max() <= TOLERANCE)
    lengths = np.linalg.norm(actual) * np.linalg.norm(expected)
    return bool((actual * expected).sum() >= MIN_COSINE * lengths)
