"""bilm-tf's variables in all file formats: their names, and what they are in `ElmoModel`."""

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from convert.checkpoint import Checkpoint, ConversionError, FloatArray, list_some, make_state
from convert.formats.bilm_options import guess_options, make_config
from hf_elmo import ElmoConfig, ElmoTokenizer

# A variable's name depends on the number of layers and directions:
# RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0, RNN_0/RNN/LSTMCell/W_0, rnn/LSTMCell/kernel.
# In TensorFlow's checkpoints it is RNN_0/rnn/multi_rnn_cell/cell_0/lstm_cell/kernel, in its modules
# RNN_0/RNN/MultiRNNCell/Cell0/rnn/lstm_cell/kernel. The first of these five is the standard name
# here, because bilm-tf and AllenNLP read no other.
CELL_NAME = re.compile(
    r"(?:RNN_(?P<direction>[01])/)?(?:RNN|rnn)/"
    r"(?:(?:MultiRNNCell/Cell|multi_rnn_cell/cell_)(?P<layer>\d+)/)?(?:rnn/)?"
    r"(?:LSTMCell|lstm_cell)/(?P<variable>W_0|kernel|B|bias|W_P_0|projection/kernel)"
)
CELL = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell/{}"
CELL_VARIABLES = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}

SENTENCE_START, SENTENCE_END, UNKNOWN = "<S>", "</S>", "<UNK>"
SKIPPED_LINE = "!!!MAXTERMID"  # bilm/data.py, Vocabulary: this line is not a word
NUM_BYTE_ROWS = 261  # 256 bytes and 5 marks


class Rule(NamedTuple):
    """A stored variable and the tensors that it contains; {} is a number, or a direction."""

    theirs: str
    ours: tuple[str, ...]
    read: Callable[[FloatArray], Sequence[FloatArray]]  # our tensors
    write: Callable[..., FloatArray] = np.asarray  # the variable, from our tensors


def reorder_gates(array: FloatArray, order: list[int]) -> FloatArray:
    """Reorder the four gates along the first axis."""
    return array.reshape(4, -1, *array.shape[1:])[order].reshape(array.shape)


def to_gates(array: FloatArray) -> FloatArray:
    """Make rows i, f, o, j from columns i, j, f, o."""
    return reorder_gates(array.T, [0, 2, 3, 1])


def to_columns(array: FloatArray) -> FloatArray:
    """Make columns i, j, f, o from rows i, f, o, j."""
    return reorder_gates(array, [0, 3, 1, 2]).T


def plain(theirs: str, ours: str) -> Rule:
    """A variable that is our tensor."""
    return Rule(theirs, (ours,), lambda array: [array])


def transposed(theirs: str, ours: str) -> Rule:
    """A matrix that is our tensor transposed."""
    return Rule(theirs, (ours,), lambda array: [array.T], lambda array: array.T)


def table(theirs: str, ours: str) -> Rule:
    """A table of vectors; ours has row 0 for padding in front."""
    return Rule(theirs, (ours,), lambda x: [np.insert(x, 0, 0, axis=0)], lambda x: x[1:])


def _list_cell_rules(number: int, direction: str) -> list[Rule]:
    cell, layer = CELL.format(number, "{}", ""), f"{direction}_lstm.layers.{{}}."
    return [
        Rule(
            f"{cell}W_0",
            (f"{layer}input_weight", f"{layer}state_weight"),
            lambda array: np.split(to_gates(array), 2, axis=1),
            lambda *weights: to_columns(np.concatenate(weights, axis=1)),
        ),
        Rule(f"{cell}B", (f"{layer}bias",), lambda array: [to_gates(array)], to_columns),
        transposed(f"{cell}W_P_0", f"{layer}projection_weight"),
    ]


RULES = [
    table("embedding", "token_encoder.word_embedding.weight"),
    table("char_embed", "token_encoder.char_embedding.weight"),
    Rule(  # (1, width, characters, filters) to (filters, characters, width)
        "CNN/W_cnn_{}",
        ("token_encoder.char_convolutions.{}.weight",),
        lambda array: [array[0].transpose(2, 1, 0)],
        lambda array: array.transpose(2, 1, 0)[None],
    ),
    plain("CNN/b_cnn_{}", "token_encoder.char_convolutions.{}.bias"),
    transposed("CNN_high_{}/W_carry", "token_encoder.highways.{}.gate.weight"),
    plain("CNN_high_{}/b_carry", "token_encoder.highways.{}.gate.bias"),
    transposed("CNN_high_{}/W_transform", "token_encoder.highways.{}.transform.weight"),
    plain("CNN_high_{}/b_transform", "token_encoder.highways.{}.transform.bias"),
    transposed("CNN_proj/W_proj", "token_encoder.projection.weight"),
    plain("CNN_proj/b_proj", "token_encoder.projection.bias"),
    *_list_cell_rules(0, "forward"),
    *_list_cell_rules(1, "backward"),
    plain("softmax/W", "softmax.weight"),
    plain("softmax/b", "softmax.bias"),
]


def standard_name(name: str) -> str:
    """Return the standard name of a stored variable, which bilm-tf and AllenNLP read."""
    match = CELL_NAME.fullmatch(name)
    if match is None:
        return name
    variable = CELL_VARIABLES.get(match["variable"], match["variable"])
    return CELL.format(match["direction"] or "0", match["layer"] or "0", variable)


def _pattern(name: str) -> str:
    return re.escape(name).replace(r"\{\}", r"(\w+)")


def rename(variables: Mapping[str, FloatArray], rules: Sequence[Rule]) -> dict[str, FloatArray]:
    """Make our tensors from variables. Unknown ones keep their names, which loading refuses."""
    state: dict[str, FloatArray] = {}
    for name, array in variables.items():
        for rule in rules:
            if match := re.fullmatch(_pattern(rule.theirs), name):
                ours = [each.format(*match.groups()) for each in rule.ours]
                try:
                    state |= zip(ours, rule.read(array), strict=True)
                except (ValueError, IndexError) as error:  # of NumPy, for other numbers of axes
                    raise ConversionError(f"{name}: unexpected shape {array.shape}.") from error
                break
        else:
            state[name] = array
    return state


def read_vocabulary(path: Path) -> list[str]:
    """Read a vocabulary as bilm-tf does: one word per line, without surrounding whitespace."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(
            path, "rt", encoding="utf-8-sig"
        ) as file:
            words = [word for word in map(str.strip, file) if word != SKIPPED_LINE]
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path}: expected UTF-8 with one word per line: {error}.") from error
    missing = {SENTENCE_START, SENTENCE_END, UNKNOWN} - set(words)
    if missing:
        raise ConversionError(f"{path}: expected {', '.join(sorted(missing))} among the words.")
    return words


def make_checkpoint(
    format_name: str,
    options: Mapping[str, Any] | None,
    variables: Mapping[str, FloatArray],
    files: Sequence[Path],
    vocabulary: Path | None,
) -> Checkpoint:
    """Make a checkpoint from bilm-tf's options, its variables by standard names, and its words.

    Without options, they are guessed.
    """
    scalars = [name for name, array in variables.items() if array.ndim == 0]
    notes = [f"{list_some(scalars)}: no part of a biLM"] if scalars else []
    softmax = [name for name in variables if name.startswith("softmax/")]
    reads_words = "embedding" in variables
    words: list[str] = []
    if vocabulary is not None and (softmax or reads_words):
        words, files = read_vocabulary(vocabulary), [*files, vocabulary]
    elif vocabulary is not None:
        notes.append(f"{vocabulary.name}: there is no softmax over its words")
    elif reads_words:
        raise ConversionError(f"{files[0]}: needs the words of its table; see --vocabulary.")
    else:
        notes += [f"{name}: needs --vocabulary" for name in softmax]
        scalars += softmax
    variables = {name: array for name, array in variables.items() if name not in scalars}
    for name, num_rows in (("char_embed", NUM_BYTE_ROWS), ("embedding", len(words))):
        if name in variables:
            variables[name] = _remove_empty_row(variables[name], num_rows)
    if "softmax/b" in variables and "softmax/W" not in variables:  # share_embedding_softmax
        variables["softmax/W"] = variables["embedding"]
    for name in ("embedding", "softmax/W"):
        if name in variables and len(variables[name]) != len(words):
            num_rows = len(variables[name])
            raise ConversionError(f"{vocabulary}: expected {num_rows} words, found {len(words)}.")
    state = rename(variables, RULES)
    marks = _find_marks(words, reads_words, "softmax/b" in variables)
    config = make_config(options or guess_options(state, files[0]), state, **marks)
    tokenizer = ElmoTokenizer.from_config(
        config,
        word_vocab=words if reads_words else None,
        **({} if reads_words else {"characters": "bytes"}),
    )
    checkpoint = Checkpoint(format_name, config, make_state(state), tokenizer, [*files])
    checkpoint.notes = notes
    checkpoint.target_words = words if "softmax/b" in variables else None
    return checkpoint


def _remove_empty_row(table: FloatArray, num_rows: int) -> FloatArray:
    """Remove the row for padding, which bilm/model.py and all modules add, the trainer does not."""
    return table[1:] if len(table) > num_rows and not table[0].any() else table


def _find_marks(words: list[str], reads_words: bool, has_softmax: bool) -> dict[str, int]:
    """Find the rows of <S> and </S>. The last of equal words counts."""
    places = {word: row for row, word in enumerate(words)}
    marks = (("sentence_start", SENTENCE_START), ("sentence_end", SENTENCE_END))
    rows = {f"{name}_word_id": places[word] + 1 for name, word in marks if reads_words}
    return rows | {f"{name}_target_id": places[word] for name, word in marks if has_softmax}


def make_variables(state: Mapping[str, Tensor], config: ElmoConfig) -> dict[str, FloatArray]:
    """Make bilm-tf's variables, whose cell adds 1 to the forget gate."""
    variables = {}
    for rule in RULES:
        for name in state:
            if match := re.fullmatch(_pattern(rule.ours[0]), name):
                arrays = [state[each.format(*match.groups())].numpy() for each in rule.ours]
                variables[rule.theirs.format(*match.groups())] = rule.write(*arrays)
    forget = slice(2 * config.cell_size, 3 * config.cell_size)
    for name in variables:
        if name.endswith("/B"):
            variables[name] = variables[name].copy()
            variables[name][forget] += config.forget_bias - 1
    return variables
