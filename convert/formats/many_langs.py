"""Format: folders of ELMoForManyLangs (HIT-SCIR), whose biLMs read code points and words."""

from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import torch

from convert.checkpoint import Checkpoint, ConversionError, FloatArray, Sources, make_state
from convert.formats.bilm_names import Rule, plain, rename, reorder_gates, table
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
CHARACTERS = "char_emb_layer.embedding.weight"
WORDS = "word_emb_layer.embedding.weight"


# --- Tensors: AllenNLP's are the same, by other names ---


def read_tensors(path: Path) -> dict[str, FloatArray]:
    """Read the floating-point tensors of a `torch.save` file, without executing code."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return {
            name: tensor.detach().float().numpy()
            for name, tensor in content.items()
            if tensor.is_floating_point()
        }
    except OSError:
        raise
    except Exception as error:  # broken bytes cause all kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConversionError(
            f"{path}: expected tensors of torch.save without code: {reason}"
        ) from error


def _gates(name: str, ours: str) -> Rule:
    """Gates i, f, g, o, which are i, f, o, j in ours."""
    return Rule(
        f"{{}}_layer_{{}}.{name}",
        (f"{{}}_lstm.layers.{{}}.{ours}",),
        lambda array: [reorder_gates(array, [0, 1, 3, 2])],
    )


def _split_highway(array: FloatArray) -> list[FloatArray]:
    """Split a highway layer into transform and gate.

    The gate of these programs weights the carried input, not the transform: 1 - g = sigmoid(-z).
    """
    transform, gate = np.split(array, 2)
    return [transform, -gate]


def _make_encoder_rules(kind: str) -> list[Rule]:
    ours = "token_encoder.highways.{}"
    return [
        plain(f"convolutions.{{}}.{kind}", f"token_encoder.char_convolutions.{{}}.{kind}"),
        plain(f"projection.{kind}", f"token_encoder.projection.{kind}"),
        Rule(
            f"highways._layers.{{}}.{kind}",
            (f"{ours}.transform.{kind}", f"{ours}.gate.{kind}"),
            _split_highway,
        ),
    ]


RULES = [
    table(WORDS, "token_encoder.word_embedding.weight"),
    table(CHARACTERS, "token_encoder.char_embedding.weight"),
    *_make_encoder_rules("weight"),
    *_make_encoder_rules("bias"),
    _gates("input_linearity.weight", "input_weight"),
    _gates("state_linearity.weight", "state_weight"),
    _gates("state_linearity.bias", "bias"),  # the only bias; it includes the forget bias
    plain("{}_layer_{}.state_projection.weight", "{}_lstm.layers.{}.projection_weight"),
]


# --- The folder ---


def recognises(path: Path) -> bool:
    """Recognise a folder by the names of its files."""
    return any((path / name).is_file() for name in (TOKEN_ENCODER, ENCODER))


def read_checkpoint(sources: Sources) -> Checkpoint:
    """Read a model of ELMoForManyLangs."""
    folder = sources.checkpoint
    files = [folder / TOKEN_ENCODER, folder / ENCODER]
    tensors = {name: array for path in files for name, array in read_tensors(path).items()}
    if any(name.startswith("char_lstm.") for name in tensors):
        raise ConversionError(
            f"{folder}: expected a character CNN, found a character LSTM, which is not supported."
        )
    state = rename(tensors, RULES)
    options = guess_options(state, folder)
    settings = sources.options or _find_settings(folder)
    if settings is not None:
        _apply_settings(options, settings)
        files.append(settings)
    entries: dict[str, list[str]] = {}
    special_ids: dict[str, int] = {}
    for kind, name, specials in (
        ("char", CHARACTERS, SPECIAL_CHARACTERS),
        ("word", WORDS, SPECIAL_WORDS),
    ):
        if name in tensors:
            files.append(folder / f"{kind}.dic")
            rows = read_lexicon(files[-1], len(tensors[name]))
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
