"""Convert bilm-tf's options.json (also used by AllenNLP) to `ElmoConfig` and back."""

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from convert.layout import Checkpoint, ConversionError
from hf_elmo import ElmoConfig
from hf_elmo.configuration_elmo import NUM_BYTE_CHARACTERS, SPECIAL_CHAR_IDS

# Values of all published models.
DEFAULT_MAX_CHARACTERS = ElmoConfig.max_characters_per_token
DEFAULT_ACTIVATION = "relu"
DEFAULT_CLIP = 3


def read_options(path: Path) -> dict[str, Any]:
    """Read bilm-tf's options.json, or another file with a JSON object."""
    try:
        options = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8
        raise ConversionError(
            f"{path}: expected bilm-tf's options as JSON, got {error}."
        ) from error
    if not isinstance(options, dict):
        raise ConversionError(f"{path}: expected a JSON object, got {json.dumps(options)[:60]}.")
    return options


def _option(options: Mapping[str, Any], name: str) -> Any:
    """Look up an option by its dotted name; None = the option or its section is missing."""
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
        raise _wrong_option(name, f"an integer of at least {minimum}", value)
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
    if value is None or value == 0:  # 0 means no clip in bilm-tf
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
    """Make the configuration of the biLM that bilm-tf builds from these options.

    Args:
        options: The content of options.json.
        others: Values of `ElmoConfig` that the options lack, or state unreliably.

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
    if options.get("dropout") is not None:  # only training uses it
        values["dropout"] = _option(options, "dropout")
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
    """Make options from the sizes of the weights.

    All other options are those of the published models.
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


def warn_of_guess(source: Path) -> None:
    """Warn about guessed options."""
    warnings.warn(
        f"{source}: found no options. Using those of all published models: {DEFAULT_ACTIVATION}, "
        f"clips of {DEFAULT_CLIP}, skip connections and {DEFAULT_MAX_CHARACTERS} characters per "
        "word. Pass other options with --options.",
        stacklevel=2,
    )


def make_options(config: ElmoConfig) -> dict[str, Any]:
    """Make options for bilm-tf and AllenNLP; an error lists all unsupported features."""
    lacks = list(_missing_features(config))
    if lacks:
        raise ConversionError(f"bilm-tf's format does not support this model: {'; '.join(lacks)}.")
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
    if config.dropout != ElmoConfig.dropout:
        options["dropout"] = config.dropout
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


def check_characters(checkpoint: Checkpoint) -> None:
    """Refuse a biLM with its own list of characters."""
    if checkpoint.characters is not None:
        raise ConversionError(
            "bilm-tf's format does not support this model: its characters are not bytes."
        )


def _missing_features(config: ElmoConfig) -> Iterator[str]:
    """List the features of a biLM that bilm-tf does not support."""
    if config.char_embedding_size and (
        config.char_vocab_size < NUM_BYTE_CHARACTERS
        or any(getattr(config, name) != getattr(ElmoConfig, name) for name in SPECIAL_CHAR_IDS)
    ):
        yield "its characters are not bytes"
    if config.char_embedding_size and config.word_embedding_size:
        yield "it reads both characters and a word lexicon"
    width = config.num_filters + config.word_embedding_size
    if config.use_token_projection != (width != config.projection_size):
        yield f"its token projection has equal input and output width, {width}"
    if config.use_token_projection and not config.char_embedding_size:
        yield "it has a projection after the word lexicon"
    if config.use_cell_projection != (config.projection_size < config.cell_size):
        yield (
            f"it projects cells of size {config.cell_size} "
            f"to {config.projection_size}, which is not smaller"
        )
