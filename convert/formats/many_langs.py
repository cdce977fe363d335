"""Format: folders of ELMoForManyLangs (HIT-SCIR), whose biLMs read code points and words."""

from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from convert.checkpoint import Checkpoint, ConversionError, Sources, make_state
from convert.formats import torch_names
from convert.formats.bilm_names import rename
from convert.formats.bilm_options import guess_options, make_config, read_options, warn_of_guess
from hf_elmo import ElmoTokenizer

TOKEN_ENCODER, ENCODER = "token_embedder.pkl", "encoder.pkl"
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


def recognises(path: Path) -> bool:
    """Recognise a folder by the names of its files."""
    return any((path / name).is_file() for name in (TOKEN_ENCODER, ENCODER))


def read_checkpoint(sources: Sources) -> Checkpoint:
    """Read a model of ELMoForManyLangs."""
    folder = sources.checkpoint
    files = [folder / TOKEN_ENCODER, folder / ENCODER]
    tensors = {
        name: array for path in files for name, array in torch_names.read_tensors(path).items()
    }
    if any(name.startswith("char_lstm.") for name in tensors):
        raise ConversionError(
            f"{folder}: expected a character CNN, found a character LSTM, which is not supported."
        )
    state = rename(tensors, torch_names.RULES)
    options = guess_options(state, folder)
    settings = sources.options or _find_settings(folder)
    if settings is not None:
        _apply_settings(options, settings)
        files.append(settings)
    entries: dict[str, list[str]] = {}
    special_ids: dict[str, int] = {}
    for kind, table, specials in (
        ("char", torch_names.CHARACTERS, SPECIAL_CHARACTERS),
        ("word", torch_names.WORDS, SPECIAL_WORDS),
    ):
        if table in tensors:
            files.append(folder / f"{kind}.dic")
            rows = read_lexicon(files[-1], len(tensors[table]))
            entries[f"{kind}_vocab"] = _list_entries(rows)
            special_ids |= _find_special_ids(files[-1], rows, specials)
    config = make_config(options, state, forget_bias=0.0, **special_ids)
    tokenizer = ElmoTokenizer.from_config(
        config, **entries, sentence_start=START, sentence_end=END, unknown=UNKNOWN
    )
    return Checkpoint("many-langs", config, make_state(state), tokenizer, files)


# --- Settings ---


def _find_settings(folder: Path) -> Path | None:
    """Find the settings file of a model; None = not in the folder.

    `config.json` names this file, usually by a path on another machine.
    """
    path = folder / "config.json"
    config = read_options(path) if path.is_file() else {}
    if "token_embedder" in config:
        return path
    name = PureWindowsPath(str(config.get("config_path"))).name  # reads both / and \ as separators
    for place in (*folder.glob("*"), *folder.glob("configs/*")):
        if place.name == name:
            return place
    if name not in PUBLISHED_SETTINGS:
        warn_of_guess(folder)
    return None


def _apply_settings(options: dict[str, Any], path: Path) -> None:
    """Add the settings in a file to bilm-tf's options."""
    settings = read_options(path)
    try:
        encoder, embedder = settings["encoder"], settings["token_embedder"]
        options["lstm"] |= {key: encoder.get(key) for key in ("cell_clip", "proj_clip")}
        if "char_cnn" in options:
            keys = ("activation", "max_characters_per_token")
            options["char_cnn"] |= {key: embedder.get(key) for key in keys}
    except (AttributeError, KeyError) as error:
        raise ConversionError(f"{path}: expected settings of a biLM: {error}.") from error


# --- Lexicons ---


def read_lexicon(path: Path, num_rows: int) -> dict[str, int]:
    """Read a lexicon as elmo.py does: one `token<TAB>row` per line."""
    rows = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.strip().split("\t")
        token, row = (STRIPPED, *fields) if len(fields) == 1 else (fields[0], "\t".join(fields[1:]))
        if not row.isdecimal() or int(row) >= num_rows:
            raise ConversionError(
                f"{path}, line {number}: expected a token, a tab and a row from 0 to "
                f"{num_rows - 1}, found {line[:60]!r}."
            )
        rows[token] = int(row)
    return rows


def _list_entries(rows: Mapping[str, int]) -> list[str]:
    """List the tokens by row. A row without a token gets a name that no word can have."""
    entries = [f"\t{row}" for row in range(max(rows.values(), default=-1) + 1)]
    for token, row in rows.items():
        entries[row] = token
    return entries


def _find_special_ids(
    path: Path, rows: Mapping[str, int], names: Mapping[str, str]
) -> dict[str, int]:
    missing = [token for token in (*names.values(), UNKNOWN) if token not in rows]
    if missing:
        raise ConversionError(f"{path}: expected {', '.join(missing)} in it, found none.")
    return {name: rows[token] + 1 for name, token in names.items()}
