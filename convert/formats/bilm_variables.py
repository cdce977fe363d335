"""bilm-tf's options and variables, whatever the file: their names, shapes and order of gates."""

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.errors import StrictDataclassError

from convert.layout import Checkpoint, ConversionError, FloatArray, LazyTensor
from hf_elmo import ElmoConfig
from hf_elmo.configuration_elmo import NUM_BYTE_CHARACTERS

Shape = tuple[int, ...]

# Of all published models.
DEFAULT_MAX_CHARACTERS = 50
DEFAULT_ACTIVATION = "relu"
DEFAULT_CLIP = 3
SENTENCE_START, SENTENCE_END, UNKNOWN = "<S>", "</S>", "<UNK>"
SKIPPED_LINE = "!!!MAXTERMID"  # bilm/data.py, Vocabulary: a line that is no word

# --- Options ---


def read_options(path: Path) -> dict[str, Any]:
    """Read bilm-tf's options.json.

    Raises:
        ConversionError: If it is not a JSON object.
    """
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of JSON and of UTF-8
        raise ConversionError(
            f"{path}: expected bilm-tf's options as JSON, got {error}."
        ) from error
    if not isinstance(options, dict):
        raise ConversionError(f"{path}: expected a JSON object, got {json.dumps(options)[:60]}.")
    return options


def _option(options: Mapping[str, Any], name: str) -> Any:
    """Look up an option by its dotted name; None where it or its section is missing."""
    value: Any = options
    for key in name.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConversionError(
                f'options: expected the section of "{name}" to be an object, '
                f"got {json.dumps(value)[:60]}."
            )
        value = value.get(key)
    return value


def _wrong_option(name: str, expected: str, value: Any) -> ConversionError:
    found = "nothing" if value is None else json.dumps(value)[:60]
    return ConversionError(f'options: expected "{name}" to be {expected}, got {found}.')


def _count(options: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = _option(options, name)
    if value is None and default is not None:
        return default
    minimum = 1 if default is None else min(1, default)
    if type(value) is not int or value < minimum:
        raise _wrong_option(name, f"a whole number of at least {minimum}", value)
    return value


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = _option(options, name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong_option(name, "true or false", value)
    return value


def _clip(options: Mapping[str, Any], name: str) -> float | None:
    value = _option(options, name)
    if value is None or value == 0:  # bilm-tf takes 0 for none
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _wrong_option(name, "a number above 0, or null", value)
    return float(value)


def _filters(options: Mapping[str, Any]) -> list[list[int]]:
    value = _option(options, "char_cnn.filters")
    if not isinstance(value, list) or not value:
        raise _wrong_option("char_cnn.filters", "a list [[width, number], ...]", value)
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or [type(x) for x in pair] != [int, int]:
            raise _wrong_option("char_cnn.filters", "a list [[width, number], ...]", value)
    return value


def make_config(options: Mapping[str, Any], **others: Any) -> ElmoConfig:
    """Describe the biLM that bilm-tf would build from its options.

    Args:
        options: The content of options.json.
        others: Values of `ElmoConfig` that the options do not hold, or not reliably.

    Raises:
        ConversionError: If an option is missing, of the wrong type or out of range.
    """
    projection_size = _count(options, "lstm.projection_dim")
    cell_size = _count(options, "lstm.dim")
    if projection_size > cell_size:
        raise ConversionError(
            'options: expected "lstm.projection_dim" of at most "lstm.dim", '
            f"got {projection_size} and {cell_size}."
        )
    values: dict[str, Any] = {
        "projection_size": projection_size,
        "cell_size": cell_size,
        "use_cell_projection": projection_size < cell_size,
        "num_hidden_layers": _count(options, "lstm.n_layers"),
        "bidirectional": _flag(options, "bidirectional", True),
        "cell_clip": _clip(options, "lstm.cell_clip"),
        "projection_clip": _clip(options, "lstm.proj_clip"),
        "use_residual": _flag(options, "lstm.use_skip_connections", False),
        "char_embedding_size": 0,
        "use_token_projection": False,
    }
    if options.get("char_cnn") is not None:
        values |= _character_values(options)
    try:
        return ElmoConfig(**values | others)
    except StrictDataclassError as error:
        raise ConversionError(f"options: {error.__cause__ or error}") from error


def _character_values(options: Mapping[str, Any]) -> dict[str, Any]:
    filters = _filters(options)
    activation = _option(options, "char_cnn.activation")
    if activation not in ("relu", "tanh"):
        raise _wrong_option("char_cnn.activation", '"relu" or "tanh"', activation)
    return {
        "char_embedding_size": _count(options, "char_cnn.embedding.dim"),
        "char_filters": filters,
        "char_activation": activation,
        "num_highway_layers": _count(options, "char_cnn.n_highway", 0),
        "max_characters_per_token": _count(
            options, "char_cnn.max_characters_per_token", DEFAULT_MAX_CHARACTERS
        ),
        "use_token_projection": sum(number for _, number in filters)
        != _option(options, "lstm.projection_dim"),
    }


def guess_options(
    *,
    projection_size: int,
    cell_size: int,
    num_layers: int,
    bidirectional: bool = True,
    char_embedding_size: int = 0,
    filters: Iterable[tuple[int, int]] = (),
    num_highways: int = 0,
) -> dict[str, Any]:
    """Make the options of a biLM of which only the weights, and so the sizes, are there.

    The rest, which no weight tells, is as in all published models.
    """
    lstm = {
        "projection_dim": projection_size,
        "dim": cell_size,
        "n_layers": num_layers,
        "cell_clip": DEFAULT_CLIP,
        "proj_clip": DEFAULT_CLIP,
        "use_skip_connections": True,
    }
    options: dict[str, Any] = {"bidirectional": bidirectional, "lstm": lstm}
    if char_embedding_size:
        options["char_cnn"] = {
            "activation": DEFAULT_ACTIVATION,
            "embedding": {"dim": char_embedding_size},
            "filters": [list(pair) for pair in filters],
            "n_highway": num_highways,
            "max_characters_per_token": DEFAULT_MAX_CHARACTERS,
        }
    return options


def numbered(pattern: str, tensors: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    """List the tensors whose names differ by a number, from 0."""
    found = takewhile(tensors.__contains__, map(pattern.format, count()))
    return [tensors[name] for name in found]


def warn_of_guess(source: Path) -> None:
    """Say what was guessed."""
    warnings.warn(
        f"{source}: found no options of it; took {DEFAULT_ACTIVATION}, clips of {DEFAULT_CLIP}, "
        f"skip connections and {DEFAULT_MAX_CHARACTERS} characters a word, as of all published "
        "models. Name others with --options.",
        stacklevel=2,
    )


def make_options(config: ElmoConfig) -> dict[str, Any]:
    """Give the options with which bilm-tf and AllenNLP build this biLM.

    Raises:
        ConversionError: If bilm-tf has no such biLM, naming all that it lacks.
    """
    lacks = list(_missing_features(config))
    if lacks:
        raise ConversionError(f"bilm-tf's format cannot hold this model: {'; '.join(lacks)}.")
    lstm: dict[str, Any] = {
        "use_skip_connections": config.use_residual,
        "projection_dim": config.projection_size,
        "dim": config.cell_size,
        "n_layers": config.num_hidden_layers,
    }
    if config.cell_clip is not None:
        lstm["cell_clip"] = config.cell_clip
    if config.projection_clip is not None:
        lstm["proj_clip"] = config.projection_clip
    options: dict[str, Any] = {"bidirectional": config.bidirectional, "lstm": lstm}
    if config.char_embedding_size:
        options["char_cnn"] = {
            "activation": config.char_activation,
            "filters": config.char_filters,
            "n_highway": config.num_highway_layers,
            "embedding": {"dim": config.char_embedding_size},
            "n_characters": config.char_vocab_size,
            "max_characters_per_token": config.max_characters_per_token,
        }
    else:
        options["n_tokens_vocab"] = config.word_vocab_size - 1
    return options


def _missing_features(config: ElmoConfig) -> Iterator[str]:
    """Name what a biLM has that no options of bilm-tf can ask for."""
    special = ElmoConfig()
    names = (
        "sentence_start_char_id",
        "sentence_end_char_id",
        "word_start_char_id",
        "word_end_char_id",
        "char_padding_id",
    )
    if config.char_embedding_size and (
        config.char_vocab_size < NUM_BYTE_CHARACTERS
        or any(getattr(config, name) != getattr(special, name) for name in names)
    ):
        yield "its characters are not bytes"
    if config.char_embedding_size and config.word_embedding_size:
        yield "it has a word lexicon beside the characters"
    width = config.num_filters + config.word_embedding_size
    if config.use_token_projection != (width != config.projection_size):
        yield f"it projects token vectors that are {width} wide, as the projection is, already"
    if config.use_token_projection and not config.char_embedding_size:
        yield "it projects vectors of a word lexicon"
    if config.use_cell_projection != (config.projection_size < config.cell_size):
        yield (
            f"it projects cells of width {config.cell_size} "
            f"to {config.projection_size}, which is not less"
        )


# --- Variables ---

# A cell is named by whether it is alone in its direction and its direction alone in the model:
# RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0, RNN_0/RNN/LSTMCell/W_0, rnn/LSTMCell/kernel; in
# TensorFlow's checkpoints RNN_0/rnn/multi_rnn_cell/cell_0/lstm_cell/kernel, in its modules
# RNN_0/RNN/MultiRNNCell/Cell0/rnn/lstm_cell/kernel. The first, the only one that bilm-tf and
# AllenNLP read, is the standard name here.
CELL_NAME = re.compile(
    r"(?:RNN_(?P<direction>[01])/)?(?:RNN|rnn)/"
    r"(?:(?:MultiRNNCell/Cell|multi_rnn_cell/cell_)(?P<layer>\d{1,4})/)?(?:rnn/)?"
    r"(?:LSTMCell|lstm_cell)/(?P<variable>W_0|kernel|B|bias|W_P_0|projection/kernel)"
)
CELL_VARIABLES = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}


def standard_name(name: str) -> str:
    """Give the name under which bilm-tf and AllenNLP read a variable that is stored as `name`."""
    match = CELL_NAME.fullmatch(name)
    if match is None:
        return name
    variable = CELL_VARIABLES.get(match["variable"], match["variable"])
    direction, layer = match["direction"] or "0", match["layer"] or "0"
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{variable}"


@dataclass(frozen=True)
class Order:
    """How the numbers of a variable are arranged in the common layout.

    Attributes:
        shape: Shape of the tensor for a shape of the variable's rows.
        to_common: The tensor for the variable's rows.
        to_bilm: The variable's rows for the tensor.
    """

    shape: Callable[[Shape], Shape]
    to_common: Callable[[FloatArray], FloatArray]
    to_bilm: Callable[[FloatArray], FloatArray]


def _reorder_gates(array: FloatArray, order: list[int]) -> FloatArray:
    """Reorder the four gates, which lie one after the other on the first axis."""
    return array.reshape(4, -1, *array.shape[1:])[order].reshape(array.shape)


PLAIN = Order(lambda shape: shape, lambda array: array, lambda array: array)
TABLE = Order(  # id 0 means "no token here"
    lambda shape: (shape[0] + 1, *shape[1:]),
    lambda array: np.concatenate([np.zeros_like(array[:1]), array]),
    lambda array: array[1:],
)
TRANSPOSED = Order(lambda shape: shape[::-1], lambda array: array.T, lambda array: array.T)
CONVOLUTION = Order(  # (1, width, characters, filters) to (filters, characters, width)
    lambda shape: shape[:0:-1],
    lambda array: array[0].transpose(2, 1, 0),
    lambda array: array.transpose(2, 1, 0)[None],
)
GATES = Order(  # columns i, j, f, o to rows i, f, o, j
    lambda shape: shape[::-1],
    lambda array: _reorder_gates(array.T, [0, 2, 3, 1]),
    lambda array: _reorder_gates(array, [0, 3, 1, 2]).T,
)


@dataclass(frozen=True)
class Part:
    """Where a tensor of the common layout lies in bilm-tf's variables.

    Attributes:
        name: Name of the tensor in `ElmoModel`'s state dict.
        variable: Standard name of the variable.
        variable_shape: Its shape.
        order: How it is arranged.
        rows: The rows of the variable that hold this tensor; None = all.
    """

    name: str
    variable: str
    variable_shape: Shape
    order: Order
    rows: tuple[int, int] | None = None


def make_parts(config: ElmoConfig) -> Iterator[Part]:
    """List every tensor of the biLM with its place in bilm-tf's variables."""
    yield from _token_parts(config)
    size, cell = config.projection_size, config.cell_size
    for direction in range(2 if config.bidirectional else 1):
        for layer in range(config.num_hidden_layers):
            ours = f"{('forward', 'backward')[direction]}_lstm.layers.{layer}"
            theirs = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shape = (2 * size, 4 * cell)
            yield Part(f"{ours}.input_weight", f"{theirs}/W_0", shape, GATES, (0, size))
            yield Part(f"{ours}.state_weight", f"{theirs}/W_0", shape, GATES, (size, 2 * size))
            yield Part(f"{ours}.bias", f"{theirs}/B", (4 * cell,), GATES)
            if config.use_cell_projection:
                shape = (cell, size)
                yield Part(f"{ours}.projection_weight", f"{theirs}/W_P_0", shape, TRANSPOSED)


def _token_parts(config: ElmoConfig) -> Iterator[Part]:
    ours, width = "token_encoder", config.num_filters
    if config.word_embedding_size:
        shape: Shape = (config.word_vocab_size - 1, config.word_embedding_size)
        yield Part(f"{ours}.word_embedding.weight", "embedding", shape, TABLE)
    if config.char_embedding_size:
        shape = (config.char_vocab_size - 1, config.char_embedding_size)
        yield Part(f"{ours}.char_embedding.weight", "char_embed", shape, TABLE)
    for i, (length, number) in enumerate(config.char_filters or []):
        shape, name = (1, length, config.char_embedding_size, number), f"{ours}.char_convolutions"
        yield Part(f"{name}.{i}.weight", f"CNN/W_cnn_{i}", shape, CONVOLUTION)
        yield Part(f"{name}.{i}.bias", f"CNN/b_cnn_{i}", (number,), PLAIN)
    for k in range(config.num_highway_layers if config.char_embedding_size else 0):
        for gate, theirs in (("gate", "carry"), ("transform", "transform")):
            name, variable = f"{ours}.highways.{k}.{gate}", f"CNN_high_{k}"
            yield Part(f"{name}.weight", f"{variable}/W_{theirs}", (width, width), TRANSPOSED)
            yield Part(f"{name}.bias", f"{variable}/b_{theirs}", (width,), PLAIN)
    if config.use_token_projection:
        shape = (width, config.projection_size)
        yield Part(f"{ours}.projection.weight", "CNN_proj/W_proj", shape, TRANSPOSED)
        yield Part(f"{ours}.projection.bias", "CNN_proj/b_proj", shape[1:], PLAIN)


def softmax_parts(num_words: int, size: int, *, is_shared: bool) -> tuple[Part, Part]:
    """Say where the softmax of the language model lies: in the word table, if that is shared."""
    weights = "embedding" if is_shared else "softmax/W"
    return (
        Part("softmax.weight", weights, (num_words, size), PLAIN),
        Part("softmax.bias", "softmax/b", (num_words,), PLAIN),
    )


def take_parts(
    parts: Iterable[Part], variables: Mapping[str, LazyTensor], source: str
) -> dict[str, LazyTensor]:
    """Find the biLM's tensors among a file's variables.

    Args:
        parts: The tensors that are expected.
        variables: The file's variables by their standard names.
        source: Name of the file, for messages.

    Raises:
        ConversionError: If a variable is missing, surplus or misshapen, naming it.
    """
    tensors, taken = {}, set()
    for part in parts:
        variable = variables.get(part.variable)
        if variable is None:
            raise ConversionError(
                f"{source}: expected a variable {part.variable} of shape "
                f"{list(part.variable_shape)}, found none; there are: "
                f"{', '.join(list(variables)[:10]) or 'none'}. "
                "Do the options belong to these weights?"
            )
        if variable.shape != part.variable_shape:
            raise ConversionError(
                f"{variable.source}: expected shape {list(part.variable_shape)} by the options, "
                f"got {list(variable.shape)}. Do the options belong to these weights?"
            )
        tensors[part.name] = _part_tensor(part, variable)
        taken.add(part.variable)
    surplus = [variables[name].source for name in variables if name not in taken]
    if surplus:
        raise ConversionError(
            f"{source}: expected no variables but the {len(taken)} that the options ask for, found "
            f"{', '.join(surplus[:10])}. Do the options belong to these weights?"
        )
    return tensors


def _part_tensor(part: Part, variable: LazyTensor) -> LazyTensor:
    first, last = part.rows or (0, variable.shape[0])
    shape = part.order.shape((last - first, *variable.shape[1:]))

    def read_rows(start: int, stop: int) -> FloatArray:
        if part.order is PLAIN:
            return variable.read_rows(start, stop)
        if part.order is TABLE:  # rows of a long table, one further down
            rows = variable.read_rows(max(start - 1, 0), stop - 1)
            return TABLE.to_common(rows) if start == 0 else rows
        return part.order.to_common(variable.read_rows(first, last))[start:stop]

    return LazyTensor(variable.source, shape, read_rows)


def variable_blocks(part: Part, tensor: LazyTensor, config: ElmoConfig) -> Iterator[FloatArray]:
    """Read a tensor of the common layout as the rows that bilm-tf has for it, some at a time."""
    if part.order is PLAIN:
        yield from tensor.blocks()
        return
    array = tensor.read()
    if part.variable.endswith("/B"):  # TensorFlow's cell adds 1 to the forget gate itself
        array[config.cell_size : 2 * config.cell_size] += config.forget_bias - 1
    yield part.order.to_bilm(array)


# --- Vocabulary ---


def read_vocabulary(path: Path, num_rows: int, rows_of: str) -> tuple[str, ...]:
    """Read a vocabulary as bilm-tf does: a word a line, stripped of white space.

    Args:
        path: The file.
        num_rows: Number of words that it must have.
        rows_of: What has that many rows, for messages.

    Raises:
        ConversionError: If the file is not UTF-8, or has another number of words.
    """
    try:
        with path.open(encoding="utf-8") as file:
            words = tuple(word for word in map(str.strip, file) if word != SKIPPED_LINE)
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path}: expected UTF-8, a word a line, got {error}.") from error
    if len(words) != num_rows:
        raise ConversionError(
            f"{path}: expected {num_rows} words, the rows of {rows_of}, got {len(words)}."
        )
    return words


def write_vocabulary(path: Path, words: Iterable[str]) -> None:
    """Write a vocabulary, a word a line."""
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\n" for word in words)


# --- The whole ---


def gather_checkpoint(
    options: Mapping[str, Any],
    variables: Mapping[str, LazyTensor],
    *,
    files: tuple[Path, ...],
    vocabulary: Path | None = None,
) -> Checkpoint:
    """Gather a biLM from bilm-tf's options, variables and vocabulary.

    Args:
        options: The content of options.json.
        variables: By standard names: the biLM's, and the softmax's if it is there too.
        files: Files that were read, the weights first.
        vocabulary: For a word table or a softmax; None = none.

    Raises:
        ConversionError: If they do not belong together, or a word table has no vocabulary.
    """
    source, reads_words = files[0].name, options.get("char_cnn") is None
    table_name = "embedding" if reads_words else "char_embed"
    table = variables.get(table_name)
    if table is None:
        raise ConversionError(
            f"{source}: expected a variable {table_name}, as the options have {'no' * reads_words} "
            f'"char_cnn", found none; there are: {", ".join(list(variables)[:10]) or "none"}.'
        )
    if reads_words and vocabulary is None:
        raise ConversionError(
            f"{source}: expected the vocabulary of its {table.shape[0]} words, found none beside "
            "it. Name it with --vocabulary."
        )
    softmax = {name: tensor for name, tensor in variables.items() if name.startswith("softmax/")}
    left_out: tuple[str, ...] = ()
    if softmax and vocabulary is None:
        left_out = tuple(f"{tensor.source}: needs --vocabulary" for tensor in softmax.values())
        variables = {name: variables[name] for name in variables if name not in softmax}
        softmax = {}
    words = None
    if vocabulary is not None and (reads_words or softmax):
        rows = table if reads_words else next(iter(softmax.values()))
        words = read_vocabulary(vocabulary, rows.shape[0], rows.source)
        files = (*files, vocabulary)
    values = _word_values(table, words) if reads_words and words else _byte_values(table)
    config = make_config(options, **values, vocab_size=len(words or ()) if softmax else 0)
    parts = make_parts(config)  # not a list: hostile options may ask for 10**9 layers
    if softmax:
        is_shared = "softmax/W" not in softmax
        others = softmax_parts(config.vocab_size, config.projection_size, is_shared=is_shared)
        parts = chain(parts, others)
    return Checkpoint(
        config=config,
        tensors=take_parts(parts, variables, source),
        files=files,
        words=words if reads_words else None,
        target_words=words if softmax else None,
        tokenizer={} if reads_words else {"characters": "bytes"},
        left_out=left_out,
    )


def _word_values(table: LazyTensor, words: tuple[str, ...]) -> dict[str, Any]:
    rows = {word: row for row, word in enumerate(words, start=1)}  # of equal ones, the last
    missing = [word for word in (SENTENCE_START, SENTENCE_END, UNKNOWN) if word not in rows]
    if missing:
        raise ConversionError(
            f"{table.source}: expected {', '.join(missing)} in the vocabulary of this biLM, which "
            "reads whole words, found none."
        )
    return {
        "word_vocab_size": len(words) + 1,
        "word_embedding_size": table.shape[-1],
        "sentence_start_word_id": rows[SENTENCE_START],
        "sentence_end_word_id": rows[SENTENCE_END],
    }


def _byte_values(table: LazyTensor) -> dict[str, Any]:
    # "n_characters" of the options is 261 or 262, and wrong in published models.
    rows = table.shape[0] + 1
    if rows < NUM_BYTE_CHARACTERS:
        raise ConversionError(
            f"{table.source}: expected {NUM_BYTE_CHARACTERS - 1} rows (256 bytes and 5 marks), "
            f"got {table.shape[0]}."
        )
    return {"char_vocab_size": rows}
