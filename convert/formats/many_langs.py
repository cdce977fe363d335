"""Format: folders of ELMoForManyLangs (HIT-SCIR), whose biLMs read code points and words."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any

from convert.formats import bilm_options, torch_tensor_names
from convert.formats.tensor_rearrangement import TABLE, gather_tensors, list_stored_tensors
from convert.formats.torch_files import read_state_dict
from convert.layout import Checkpoint, ConversionError, Format, Sources

CONFIG, TOKEN_ENCODER, ENCODER = "config.json", "token_embedder.pkl", "encoder.pkl"
CHARACTERS, WORDS = "char.dic", "word.dic"
MAX_LEXICON_SIZE = 1 << 28  # bytes

START, END, UNKNOWN = "<bos>", "<eos>", "<oov>"
SPECIAL_CHARACTERS = {
    "sentence_start_char_id": START,
    "sentence_end_char_id": END,
    # frontend.py, `create_one_batch`, swaps these two names.
    "word_start_char_id": "<eow>",
    "word_end_char_id": "<bow>",
    "char_padding_id": "<pad>",
}
SPECIAL_WORDS = {"sentence_start_word_id": START, "sentence_end_word_id": END}
# Folders of published models name these settings files but lack them; our guess is right for them.
PUBLISHED_SETTINGS = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")
STRIPPED = "\u3000"  # character whose line has only an id left after `strip` (elmo.py)

NAMES = torch_tensor_names.TensorNames(
    characters="char_emb_layer.embedding.weight",
    character_arrangement=TABLE,
    convolution="convolutions.{}",
    highway="highways._layers.{}",
    projection="projection",
    lstm="{}_layer_{}",
    words="word_emb_layer.embedding.weight",
)


def recognises(path: Path) -> bool:
    """Recognise a folder by the names of its files."""
    return any((path / name).is_file() for name in (TOKEN_ENCODER, ENCODER))


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open a model of ELMoForManyLangs."""
    folder = sources.checkpoint
    files = [_expect(folder / TOKEN_ENCODER), _expect(folder / ENCODER)]
    tensors = {name: t for path in files for name, t in read_state_dict(path).items()}
    if any(name.startswith("char_lstm.") for name in tensors):
        raise ConversionError(
            f"{folder}: expected a character CNN, found a character LSTM, which is not supported."
        )
    options = torch_tensor_names.guess_options(tensors, NAMES, folder)
    config_path = sources.options or find_settings(folder)
    if config_path is not None:
        _apply_settings(options, config_path)
        files.append(config_path)
    lexicons: dict[str, tuple[str, ...]] = {}
    values: dict[str, int] = {}
    for name, table, specials in (
        (CHARACTERS, NAMES.characters, SPECIAL_CHARACTERS),
        (WORDS, NAMES.words, SPECIAL_WORDS),
    ):
        if table in tensors:
            path = _expect(folder / name)
            files.append(path)
            ids = read_lexicon(path, tensors[table].shape[0])
            lexicons[name] = _list_entries(ids)
            values |= _special_ids(path, ids, specials)
    config = torch_tensor_names.make_config(options, tensors, NAMES, **values)
    yield Checkpoint(
        config=config,
        tensors=gather_tensors(
            list_stored_tensors(config, NAMES.make_rules()), tensors, str(folder)
        ),
        files=tuple(files),
        words=lexicons.get(WORDS),
        characters=lexicons.get(CHARACTERS),
        tokenizer={"sentence_start": START, "sentence_end": END, "unknown": UNKNOWN},
    )


def _expect(path: Path) -> Path:
    if not path.is_file():
        raise ConversionError(f"{path.parent}: expected {path.name} in it, found none.")
    return path


# --- Settings ---


def find_settings(folder: Path) -> Path | None:
    """Find the settings file of a model; None = not in the folder.

    `config.json` names this file, usually by a path on another machine.
    """
    path = folder / CONFIG
    if not path.is_file():
        bilm_options.warn_of_guess(folder)
        return None
    config = bilm_options.read_options(path)
    if "token_embedder" in config:
        return path
    name = PureWindowsPath(str(config.get("config_path"))).name  # reads both / and \ as separators
    for place in (*folder.glob("*"), *folder.glob("configs/*")):
        if place.name == name and place.is_file():
            return place
    if name not in PUBLISHED_SETTINGS:
        bilm_options.warn_of_guess(folder / name)
    return None


def _apply_settings(options: dict[str, Any], path: Path) -> None:
    """Add the settings in a file to bilm-tf's options."""
    settings = bilm_options.read_options(path)
    for ours, theirs, keys in (
        ("lstm", "encoder", ("cell_clip", "proj_clip")),
        ("char_cnn", "token_embedder", ("activation", "max_characters_per_token")),
    ):
        section = settings.get(theirs)
        if not isinstance(section, dict):
            raise ConversionError(f'{path}: expected a section "{theirs}", found none.')
        if ours in options:
            options[ours] |= {key: section.get(key) for key in keys}


# --- Lexicons ---


def read_lexicon(path: Path, num_rows: int) -> dict[str, int]:
    """Read a lexicon as elmo.py does: one `token<TAB>row` per line."""
    if path.stat().st_size > MAX_LEXICON_SIZE:
        raise ConversionError(
            f"{path}: expected a lexicon of at most {MAX_LEXICON_SIZE:,} bytes, got "
            f"{path.stat().st_size:,}."
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path}: expected UTF-8, got {error}.") from error
    rows = {}
    for number, line in enumerate(lines, start=1):
        fields = line.strip().split("\t")
        token, row = (STRIPPED, *fields) if len(fields) == 1 else (fields[0], "\t".join(fields[1:]))
        if not row.isdecimal() or len(row) > 10 or int(row) >= num_rows:
            raise ConversionError(
                f"{path}, line {number}: expected a token, a tab and a row from 0 to "
                f"{num_rows - 1}, got {line[:60]!r}."
            )
        rows[token] = int(row)
    return rows


def _list_entries(rows: dict[str, int]) -> tuple[str, ...]:
    """List the tokens by row. A row without a token gets a name that no word can have."""
    entries = [f"\t{row}" for row in range(max(rows.values(), default=-1) + 1)]
    for token, row in rows.items():
        entries[row] = token
    return tuple(entries)


def _special_ids(path: Path, rows: dict[str, int], names: Mapping[str, str]) -> dict[str, int]:
    missing = [token for token in (*names.values(), UNKNOWN) if token not in rows]
    if missing:
        raise ConversionError(f"{path}: expected {', '.join(missing)} in it, found none.")
    return {name: rows[token] + 1 for name, token in names.items()}


FORMAT = Format(
    name="many-langs",
    description="folder of ELMoForManyLangs: encoder.pkl, token_embedder.pkl, char.dic, word.dic",
    recognises=recognises,
    companions=("options",),
    open=open_checkpoint,
)
