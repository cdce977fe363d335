"""Convert bilm-tf's options.json (also used by AllenNLP) to `ElmoConfig` and back."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from convert.checkpoint import ConversionError, FloatArray, list_numbered, list_some
from hf_elmo import ElmoConfig

# Values of all published models.
DEFAULT_MAX_CHARACTERS = 50
DEFAULT_ACTIVATION = "relu"
DEFAULT_CLIP = 3
ENCODER = "token_encoder"


def read_options(path: Path) -> dict[str, Any]:
    """Read bilm-tf's options.json, or another file with a JSON object."""
    try:
        options = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # invalid JSON or UTF-8
        raise ConversionError(f"{path}: expected options as JSON: {error}.") from error
    if not isinstance(options, dict):
        raise ConversionError(f"{path}: expected a JSON object, found {str(options)[:60]}.")
    return options


def make_config(
    options: Mapping[str, Any], state: Mapping[str, FloatArray], **others: Any
) -> ElmoConfig:
    """Make the configuration; tensors decide the sizes that options state unreliably."""
    try:
        lstm, cnn = options["lstm"], options.get("char_cnn")
        values = {
            "projection_size": lstm["projection_dim"],
            "cell_size": lstm["dim"],
            "num_hidden_layers": lstm["n_layers"],
            "bidirectional": options.get("bidirectional", True),
            "cell_clip": float(lstm.get("cell_clip") or 0) or None,  # 0 means no clip in bilm-tf
            "projection_clip": float(lstm.get("proj_clip") or 0) or None,
            "use_residual": lstm.get("use_skip_connections") or False,
            "char_embedding_size": 0,
        }
        if options.get("dropout") is not None:  # only training uses it
            values["dropout"] = options["dropout"]
        if cnn is not None:
            length = cnn.get("max_characters_per_token") or DEFAULT_MAX_CHARACTERS
            values |= {
                "char_embedding_size": cnn["embedding"]["dim"],
                "char_filters": cnn["filters"],
                "char_activation": cnn["activation"],
                "num_highway_layers": cnn.get("n_highway") or 0,
                "max_characters_per_token": length,
            }
        return ElmoConfig(**values | _read_sizes(state) | others)
    except StrictDataclassError as error:
        raise ConversionError(f"Wrong options: {error.__cause__ or error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConversionError(f"Wrong options: {error!r}.") from error


def _read_sizes(state: Mapping[str, FloatArray]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "use_token_projection": f"{ENCODER}.projection.weight" in state,
        "use_cell_projection": "forward_lstm.layers.0.projection_weight" in state,
    }
    if f"{ENCODER}.char_embedding.weight" in state:
        values["char_vocab_size"] = len(state[f"{ENCODER}.char_embedding.weight"])
    if f"{ENCODER}.word_embedding.weight" in state:
        rows, width = state[f"{ENCODER}.word_embedding.weight"].shape
        values |= {"word_vocab_size": rows, "word_embedding_size": width}
    if "softmax.bias" in state:
        values["vocab_size"] = len(state["softmax.bias"])
    return values


def guess_options(state: Mapping[str, FloatArray], source: Path) -> dict[str, Any]:
    """Make options from the sizes of the weights; all others are those of the published models."""
    layers = list_numbered("forward_lstm.layers.{}.input_weight", state)
    if not layers:
        raise ConversionError(f"{source}: expected LSTM weights, found {list_some(state)}.")
    lstm = {
        "projection_dim": state[layers[0]].shape[-1],
        "dim": state[layers[0]].shape[0] // 4,
        "n_layers": len(layers),
        "cell_clip": DEFAULT_CLIP,
        "proj_clip": DEFAULT_CLIP,
        "use_skip_connections": True,
    }
    bidirectional = "backward_lstm.layers.0.input_weight" in state
    options: dict[str, Any] = {"bidirectional": bidirectional, "lstm": lstm}
    if names := list_numbered(f"{ENCODER}.char_convolutions.{{}}.weight", state):
        shapes = [state[name].shape for name in names]  # (filters, characters, width)
        options["char_cnn"] = {
            "activation": DEFAULT_ACTIVATION,
            "embedding": {"dim": shapes[0][1]},
            "filters": [[shape[-1], shape[0]] for shape in shapes],
            "n_highway": len(list_numbered(f"{ENCODER}.highways.{{}}.gate.weight", state)),
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
    """Make bilm-tf's options, which lack what it does not support."""
    clips = {"cell_clip": config.cell_clip, "proj_clip": config.projection_clip}
    lstm = {
        "use_skip_connections": config.use_residual,
        "projection_dim": config.projection_size,
        "dim": config.cell_size,
        "n_layers": config.num_hidden_layers,
        **{name: clip for name, clip in clips.items() if clip is not None},
    }
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
