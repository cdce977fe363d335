"""Tensors of PyTorch programs, by the names of ELMoForManyLangs: rules, and how files are read."""

from pathlib import Path

import numpy as np
import torch

from convert.checkpoint import ConversionError, FloatArray
from convert.formats.bilm_names import Rule, plain, reorder_gates, table

CHARACTERS = "char_emb_layer.embedding.weight"
WORDS = "word_emb_layer.embedding.weight"


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
