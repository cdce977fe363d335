"""bilm-tf's variables in all file formats: names, shapes and order of gates."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from convert.formats.bilm_options import make_config
from convert.formats.tensor_rearrangement import (
    PLAIN,
    TABLE,
    Arrangement,
    Rule,
    StoredTensor,
    gather_tensors,
    list_stored_tensors,
    reorder_gates,
)
from convert.layout import Checkpoint, ConversionError, FloatArray, LazyTensor
from hf_elmo import ElmoConfig
from hf_elmo.configuration_elmo import NUM_BYTE_CHARACTERS
from hf_elmo.language_model.vocabulary import (
    SENTENCE_END,
    SENTENCE_START,
    SPECIAL_WORDS,
    UNKNOWN,
)

# A variable's name depends on the number of layers and directions:
# RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0, RNN_0/RNN/LSTMCell/W_0, rnn/LSTMCell/kernel.
# In TensorFlow's checkpoints it is RNN_0/rnn/multi_rnn_cell/cell_0/lstm_cell/kernel, in its modules
# RNN_0/RNN/MultiRNNCell/Cell0/rnn/lstm_cell/kernel. The first of these five is the standard name
# here, because bilm-tf and AllenNLP read no other.
CELL_NAME = re.compile(
    r"(?:RNN_(?P<direction>[01])/)?(?:RNN|rnn)/"
    r"(?:(?:MultiRNNCell/Cell|multi_rnn_cell/cell_)(?P<layer>\d{1,4})/)?(?:rnn/)?"
    r"(?:LSTMCell|lstm_cell)/(?P<variable>W_0|kernel|B|bias|W_P_0|projection/kernel)"
)
SKIPPED_LINE = "!!!MAXTERMID"  # bilm/data.py, Vocabulary: this line is not a word
CELL_VARIABLES = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}


def standard_name(name: str) -> str:
    """Return the standard name of a stored variable, which bilm-tf and AllenNLP read."""
    match = CELL_NAME.fullmatch(name)
    if match is None:
        return name
    variable = CELL_VARIABLES.get(match["variable"], match["variable"])
    direction, layer = match["direction"] or "0", match["layer"] or "0"
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{variable}"


TRANSPOSED = Arrangement(lambda shape: shape[::-1], lambda array: array.T, lambda array: array.T)
CONVOLUTION = Arrangement(  # (1, width, characters, filters) to (filters, characters, width)
    lambda shape: (1, *shape[::-1]),
    lambda array: array[0].transpose(2, 1, 0),
    lambda array: array.transpose(2, 1, 0)[None],
)
GATES = Arrangement(  # columns i, j, f, o to rows i, f, o, j
    lambda shape: shape[::-1],
    lambda array: reorder_gates(array.T, [0, 2, 3, 1]),
    lambda array: reorder_gates(array, [0, 3, 1, 2]).T,
)


def _locate_lstm(direction: str, cell: str) -> list[Rule]:
    layer = rf"{direction}_lstm.layers.(\d+)"
    return [
        Rule(f"{layer}.input_weight", f"{cell}/W_0", GATES, 0),
        Rule(f"{layer}.state_weight", f"{cell}/W_0", GATES, 1),
        Rule(f"{layer}.bias", f"{cell}/B", GATES),
        Rule(f"{layer}.projection_weight", f"{cell}/W_P_0", TRANSPOSED),
    ]


_OURS = "token_encoder"
RULES = [
    Rule(f"{_OURS}.word_embedding.weight", "embedding", TABLE),
    Rule(f"{_OURS}.char_embedding.weight", "char_embed", TABLE),
    Rule(rf"{_OURS}.char_convolutions.(\d+).weight", "CNN/W_cnn_{}", CONVOLUTION),
    Rule(rf"{_OURS}.char_convolutions.(\d+).bias", "CNN/b_cnn_{}", PLAIN),
    Rule(rf"{_OURS}.highways.(\d+).gate.weight", "CNN_high_{}/W_carry", TRANSPOSED),
    Rule(rf"{_OURS}.highways.(\d+).gate.bias", "CNN_high_{}/b_carry", PLAIN),
    Rule(rf"{_OURS}.highways.(\d+).transform.weight", "CNN_high_{}/W_transform", TRANSPOSED),
    Rule(rf"{_OURS}.highways.(\d+).transform.bias", "CNN_high_{}/b_transform", PLAIN),
    Rule(f"{_OURS}.projection.weight", "CNN_proj/W_proj", TRANSPOSED),
    Rule(f"{_OURS}.projection.bias", "CNN_proj/b_proj", PLAIN),
    *_locate_lstm("forward", "RNN_0/RNN/MultiRNNCell/Cell{}/LSTMCell"),
    *_locate_lstm("backward", "RNN_1/RNN/MultiRNNCell/Cell{}/LSTMCell"),
]


def list_stored_softmax(
    num_words: int, size: int, *, is_shared: bool
) -> tuple[StoredTensor, StoredTensor]:
    """Locate the softmax; its weights are the word table if `is_shared`."""
    weights = "embedding" if is_shared else "softmax/W"
    return (
        StoredTensor("softmax.weight", (num_words, size), weights, PLAIN),
        StoredTensor("softmax.bias", (num_words,), "softmax/b", PLAIN),
    )


def read_as_stored(
    stored: StoredTensor, tensor: LazyTensor, config: ElmoConfig
) -> Iterator[FloatArray]:
    """Read a tensor of the common layout as rows of bilm-tf's variable, in blocks."""
    if stored.arrangement is PLAIN:
        yield from tensor.blocks()
        return
    array = tensor.read()
    if stored.variable.endswith("/B"):  # TensorFlow's cell adds 1 to the forget gate
        array[config.cell_size : 2 * config.cell_size] += config.forget_bias - 1
    yield stored.arrangement.to_stored(array)


def without_empty_row(table: LazyTensor) -> LazyTensor:
    """Remove the padding row if there is one.

    bilm/model.py, and so every module, adds this row at the start; the trainer does not.
    """
    if table.read_rows(0, 1).any():
        return table
    shape = (table.shape[0] - 1, *table.shape[1:])
    return LazyTensor(table.source, shape, lambda start, stop: table.read_rows(start + 1, stop + 1))


def gather_checkpoint(
    options: Mapping[str, Any],
    variables: Mapping[str, LazyTensor],
    *,
    files: tuple[Path, ...],
    vocabulary: Path | None = None,
) -> Checkpoint:
    """Make a checkpoint from bilm-tf's options, variables and vocabulary.

    Args:
        options: Content of options.json.
        variables: Variables of the biLM and of an optional softmax, by standard names.
        files: Files that were read, weights first.
        vocabulary: Vocabulary file of a word table or a softmax; None = no vocabulary.

    Raises:
        ConversionError: If the inputs do not belong together, or a word table has no vocabulary.
    """
    source, reads_words = files[0].name, options.get("char_cnn") is None
    table_name = "embedding" if reads_words else "char_embed"
    table = variables.get(table_name)
    if table is None:
        raise ConversionError(
            f"{source}: expected a variable {table_name}, as the options have {'no ' * reads_words}"
            f'"char_cnn", found: {", ".join(list(variables)[:10]) or "none"}.'
        )
    if not reads_words and table.shape[0] >= NUM_BYTE_CHARACTERS:
        table = without_empty_row(table)
        variables = {**variables, table_name: table}
    if reads_words and vocabulary is None:
        raise ConversionError(
            f"{source}: expected the vocabulary of its {table.shape[0]} words next to it, found "
            "none. Pass it with --vocabulary."
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
    elif vocabulary is not None:
        left_out = (f"{vocabulary.name}: there is no softmax over its words",)
    values = _word_values(table, words) if reads_words and words else _byte_values(table)
    config = make_config(options, **values, vocab_size=len(words or ()) if softmax else 0)
    expected = list_stored_tensors(config, RULES)
    if softmax:
        is_shared = "softmax/W" not in softmax
        others = list_stored_softmax(config.vocab_size, config.projection_size, is_shared=is_shared)
        expected = chain(expected, others)
    return Checkpoint(
        config=config,
        tensors=gather_tensors(expected, variables, source),
        files=files,
        words=words if reads_words else None,
        target_words=words if softmax else None,
        tokenizer={} if reads_words else {"characters": "bytes"},
        left_out=left_out,
    )


def read_vocabulary(path: Path, num_rows: int, rows_of: str) -> tuple[str, ...]:
    """Read a vocabulary as bilm-tf does: one word per line, without surrounding whitespace."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            words = tuple(word for word in map(str.strip, file) if word != SKIPPED_LINE)
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{path}: expected UTF-8 with one word per line, got {error}. If the file is "
            "compressed, decompress it first."
        ) from error
    if len(words) != num_rows:
        raise ConversionError(
            f"{path}: expected {num_rows} words, one per row of {rows_of}, got {len(words)}."
        )
    return words


def check_words(checkpoint: Checkpoint) -> None:
    """Refuse words that `read_vocabulary` would not read back."""
    words = checkpoint.words or checkpoint.target_words or ()
    for word in words:
        if word != word.strip() or word == SKIPPED_LINE or {"\n", "\r"} & set(word):
            raise ConversionError(
                f"Expected words without surrounding whitespace or line breaks, got {word!r}."
            )
    if words and words[0].startswith("\ufeff"):
        raise ConversionError(f"Expected no byte order mark in the first word, got {words[0]!r}.")
    rows = {word: row for row, word in enumerate(checkpoint.words or (), start=1)}
    config = checkpoint.config
    marks = (config.sentence_start_word_id, config.sentence_end_word_id)
    if rows and (
        UNKNOWN not in rows or marks != (rows.get(SENTENCE_START), rows.get(SENTENCE_END))
    ):
        raise ConversionError(
            f"Expected {', '.join(SPECIAL_WORDS)} among the words of the word table, as the marks "
            "of sentences and of unknown words."
        )


def _word_values(table: LazyTensor, words: tuple[str, ...]) -> dict[str, Any]:
    rows = {word: row for row, word in enumerate(words, start=1)}  # the last of equal words wins
    missing = [word for word in SPECIAL_WORDS if word not in rows]
    if missing:
        raise ConversionError(
            f"{table.source}: expected {', '.join(missing)} in the vocabulary of this word-based "
            "biLM, found none."
        )
    return {
        "word_vocab_size": len(words) + 1,
        "word_embedding_size": table.shape[-1],
        "sentence_start_word_id": rows[SENTENCE_START],
        "sentence_end_word_id": rows[SENTENCE_END],
    }


def _byte_values(table: LazyTensor) -> dict[str, Any]:
    # The option "n_characters" is 261 or 262, and often wrong in published models.
    rows = table.shape[0] + 1
    if rows < NUM_BYTE_CHARACTERS:
        raise ConversionError(
            f"{table.source}: expected {NUM_BYTE_CHARACTERS - 1} rows (256 bytes and 5 marks), "
            f"got {table.shape[0]}."
        )
    return {"char_vocab_size": rows}
