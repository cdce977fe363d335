"""Format: AllenNLP's archives of task models, and weights of its `Elmo` module."""

import json
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convert.formats import bilm_options, torch_tensor_names
from convert.formats.tensor_rearrangement import (
    PLAIN,
    gather_tensors,
    list_numbered,
    list_stored_tensors,
)
from convert.formats.torch_files import is_torch_zip, read_state_dict
from convert.layout import (
    Checkpoint,
    ConversionError,
    Format,
    LazyTensor,
    Mix,
    Sources,
    Writer,
    WriteSettings,
    add_mixes,
    configured_mix,
)

# Weights in an archive, and best weights in a training folder.
WEIGHTS = ("weights.th", "best.th")
SUFFIXES = (".th", ".pt", ".pth")
CONFIG, OPTIONS = "config.json", "options.json"
# Archives of published models name such an options file but lack it; for them our guess is right.
PUBLISHED_OPTIONS = re.compile(r".*elmo_\d+x\d+_\d+_2048cnn_\dxhighway.*options.*\.json")

NAMES = torch_tensor_names.TensorNames(
    characters="_token_embedder._char_embedding_weights",
    character_arrangement=PLAIN,  # includes the padding row
    convolution="_token_embedder.char_conv_{}",
    highway="_token_embedder._highways._layers.{}",
    projection="_token_embedder._projection",
    lstm="_elmo_lstm.{}_layer_{}",
)
BILM_NAME = r"_token_embedder\.|_elmo_lstm\.(forward|backward)_layer_"
# Written for -inf, the weight of a layer that a mix leaves out. Readers refuse -inf, and after the
# softmax both are 0.
LEAST_WEIGHT = -1e30
BILM_SCOPE = "_elmo_lstm."  # in `Elmo`, next to mixes such as `scalar_mix_0.gamma`
# Scope of AllenNLP's other ELMo (Peters et al. 2018b), a biLM of Transformers or gated CNNs.
OTHER_BILM_SCOPE = "_contextualizer."


def recognises(path: Path) -> bool:
    """Recognise an unpacked archive by its weights, and weights by their suffix or content."""
    if path.is_dir():
        return any((path / name).is_file() for name in WEIGHTS)
    return path.is_file() and (path.suffix in SUFFIXES or is_torch_zip(path))


# --- Reading ---


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open the biLM of a task model, with the learned scalar mixes."""
    path = sources.checkpoint
    if path.is_dir():
        path = next(path / name for name in WEIGHTS if (path / name).is_file())
    files, every = [path], read_state_dict(path)
    scope = _find_scope(path, every)
    tensors = {
        name.removeprefix(scope): tensor
        for name, tensor in every.items()
        if re.match(rf"{re.escape(scope)}({BILM_NAME})", name)
    }
    settings: dict[str, Any] = {}
    if path.with_name(CONFIG).is_file():
        files.append(path.with_name(CONFIG))
        settings = bilm_options.read_options(files[-1])
    embedder = _find_embedder(settings)
    options_path = sources.options or _find_options(path)
    if options_path is not None:
        files.append(options_path)
        options = bilm_options.read_options(options_path)
    else:
        options = torch_tensor_names.guess_options(tensors, NAMES, path)
        if PUBLISHED_OPTIONS.fullmatch(str(embedder["options_file"])) is None:
            bilm_options.warn_of_guess(path)
    config = torch_tensor_names.make_config(options, tensors, NAMES)
    expected = list_stored_tensors(config, NAMES.make_rules())
    checkpoint = Checkpoint(
        config=config,
        tensors=gather_tensors(expected, tensors, path.name),
        files=tuple(files),
    )
    task = settings.get("model")
    name = task.get("type") if isinstance(task, dict) else task
    mixes = dict(_read_mixes(every, scope, str(name or "elmo"), embedder["do_layer_norm"] is True))
    if any(mix.layer_norm for mix in mixes.values()):
        warnings.warn(
            "AllenNLP's layer norm also counts <S> and </S>, ours counts only words. The mix of "
            "the converted model therefore differs slightly; the layers are equal.",
            stacklevel=2,
        )
    others = len(every) - len(tensors) - sum(len(mix.weights) + 1 for mix in mixes.values())
    left_out = (f"{path.name}: {others} tensors of the task's own layers",) if others else ()
    yield replace(add_mixes(checkpoint, mixes), left_out=left_out)


def _find_scope(path: Path, names: Iterable[str]) -> str:
    """Find the common prefix of the biLM's tensor names."""
    scopes = [
        name.removesuffix(NAMES.characters) for name in names if name.endswith(NAMES.characters)
    ]
    if len(scopes) == 1:
        return scopes[0]
    if scopes:
        raise ConversionError(f"{path}: expected one ELMo, found several: {', '.join(scopes)}.")
    if any(OTHER_BILM_SCOPE in name for name in names):
        raise ConversionError(
            f"{path}: expected an ELMo with LSTMs, found a biLM of Transformers or gated CNNs "
            "(Peters et al. 2018b). This architecture is not supported."
        )
    found = ", ".join(list(names)[:10]) or "none"
    raise ConversionError(f"{path}: expected a tensor ...{NAMES.characters}, found: {found}.")


def _find_embedder(settings: dict[str, Any]) -> dict[str, Any]:
    """Find ELMo's settings in the settings of a task; missing settings are None."""
    nodes: list[Any] = [settings]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if "options_file" in node:
                return defaultdict(lambda: None, node)
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return defaultdict(lambda: None)


def _find_options(weights: Path) -> Path | None:
    """Find the options next to the weights, or in the folder fta of AllenNLP's archives."""
    places = [weights.with_name(f"{weights.stem}_{OPTIONS}"), weights.with_name(OPTIONS)]
    places += sorted(weights.parent.glob("fta/*options_file"))
    return next((place for place in places if place.is_file()), None)


def _read_mixes(
    every: Mapping[str, LazyTensor], scope: str, task: str, layer_norm: bool
) -> Iterator[tuple[str, Mix]]:
    """Yield the name and values of each scalar mix stored beside the biLM."""
    scope = scope.removesuffix(BILM_SCOPE)
    for name, gamma in every.items():
        match = re.fullmatch(rf"{re.escape(scope)}(scalar_mix\w*)\.gamma", name)
        if match is not None:
            weights = list_numbered(f"{scope}{match[1]}.scalar_parameters.{{}}", every)
            numbers = [tensor.read() for tensor in (gamma, *weights)]
            if any(array.shape != (1,) for array in numbers):
                raise ConversionError(
                    f"{gamma.source}: expected a single value per parameter of the mix."
                )
            factor, *values = (float(array[0]) for array in numbers)
            yield f"{task}.{match[1]}", Mix(tuple(values), factor, layer_norm)


# --- Writing ---


def check(checkpoint: Checkpoint, target: Path, dtype: str) -> None:
    """Check that AllenNLP's `Elmo` supports this biLM; the error lists all reasons."""
    if target.suffix != SUFFIXES[0]:
        raise ConversionError(f"{target.name}: expected a file name that ends in {SUFFIXES[0]}.")
    if dtype != "float32":
        raise ConversionError(f"Expected --dtype float32 for AllenNLP's format, got {dtype}.")
    config = checkpoint.config
    bilm_options.make_options(config)
    bilm_options.check_characters(checkpoint)
    needs = {
        "characters": config.char_embedding_size > 0,
        f"{bilm_options.DEFAULT_MAX_CHARACTERS} characters per word": (
            config.max_characters_per_token == bilm_options.DEFAULT_MAX_CHARACTERS
        ),
        "both directions": config.bidirectional,
        "skip connections": config.use_residual,
        "both clips": config.cell_clip is not None and config.projection_clip is not None,
        "a projection of cells": config.use_cell_projection,
        "a projection of token vectors": config.use_token_projection,
    }
    missing = [name for name, is_there in needs.items() if not is_there]
    if missing:
        raise ConversionError(
            f"AllenNLP's Elmo does not support this biLM. Expected: {', '.join(missing)}."
        )
    if any(mix.layer_norm for mix in _list_mixes(checkpoint)):
        warnings.warn(
            "AllenNLP's weights do not store the layer norm of a mix: it is omitted. Construct its "
            "Elmo with do_layer_norm=True.",
            stacklevel=2,
        )
    mixes, configured = _list_mixes(checkpoint), configured_mix(config)
    is_default = configured.gamma == 1 and len(set(configured.weights)) == 1
    if configured not in mixes and not is_default:
        warnings.warn(
            f"The mix in the configuration is omitted: {len(mixes)} others are written.",
            stacklevel=2,
        )
    if "softmax.weight" in checkpoint.tensors:
        warnings.warn("AllenNLP's Elmo has no softmax: the softmax is omitted.", stacklevel=2)


def find_options(weights: Path) -> Path:
    """Return the path of the options that are written for these weights."""
    return weights.with_name(f"{weights.stem}_{OPTIONS}")


def _list_mixes(checkpoint: Checkpoint) -> list[Mix]:
    """List the mixes to write. A single mix is that of the configuration, which may be newer."""
    mixes = list(checkpoint.mixes.values())
    return mixes if len(mixes) > 1 else [configured_mix(checkpoint.config)]


def write_checkpoint(checkpoint: Checkpoint, path: Path, settings: WriteSettings) -> None:
    """Write a state dict of AllenNLP's `Elmo`, and its options next to it."""
    config = checkpoint.config
    text = json.dumps(bilm_options.make_options(config), indent=2) + "\n"
    find_options(path).write_text(text, encoding="utf-8")
    weights: dict[str, torch.Tensor] = {}
    for stored in list_stored_tensors(config, NAMES.make_rules()):
        name, array = BILM_SCOPE + stored.variable, checkpoint.tensors[stored.name].read()
        if stored.arrangement is torch_tensor_names.GATES and array.ndim == 1:
            array = array.copy()  # AllenNLP's bias includes the forget bias
            array[config.cell_size : 2 * config.cell_size] += config.forget_bias
        first, last = stored.rows
        whole = weights.setdefault(name, torch.empty(stored.variable_shape))
        whole[first:last] = torch.from_numpy(
            np.ascontiguousarray(stored.arrangement.to_stored(array))
        )
    for k, mix in enumerate(_list_mixes(checkpoint)):
        weights[f"scalar_mix_{k}.gamma"] = torch.tensor([mix.gamma], dtype=torch.float32)
        for i, weight in enumerate(mix.weights):
            finite = LEAST_WEIGHT if weight == -math.inf else weight
            weights[f"scalar_mix_{k}.scalar_parameters.{i}"] = torch.tensor(
                [finite], dtype=torch.float32
            )
    try:
        torch.save(weights, path)
    except RuntimeError as error:  # torch.save if the disk is full
        reason = str(error).partition("\n")[0]
        raise OSError(f"Expected to write {path}, got: {reason}. Is the disk full?") from error


FORMAT = Format(
    name="allennlp",
    description="AllenNLP's model.tar.gz or weights.th, of a task model or of Elmo",
    recognises=recognises,
    companions=("options",),
    open=open_checkpoint,
    writer=Writer(check, write_checkpoint),
)
