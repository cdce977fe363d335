"""Format: AllenNLP's archives of task models, and weights of its `Elmo` module."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from convert.checkpoint import (
    Checkpoint,
    ConversionError,
    FloatArray,
    Mix,
    Sources,
    list_numbered,
    list_some,
    make_state,
)
from convert.formats import many_langs
from convert.formats.bilm_names import rename
from convert.formats.bilm_options import guess_options, make_config, read_options, warn_of_guess
from hf_elmo import ElmoTokenizer

# Weights in an archive, and best weights in a training folder.
WEIGHTS = ("weights.th", "best.th")
SUFFIXES = (".th", ".pt", ".pth", ".bin", ".pkl")
# Archives of published models name such an options file but lack it; for them our guess is right.
PUBLISHED = re.compile(r".*elmo_\d+x\d+_\d+_2048cnn_\dxhighway.*options.*\.json")

CHARACTERS = "_token_embedder._char_embedding_weights"
RENAMED = {  # names of ELMoForManyLangs
    "_token_embedder.char_conv_": "convolutions.",
    "_token_embedder._highways.": "highways.",
    "_token_embedder._projection.": "projection.",
    "_elmo_lstm.forward": "forward",
    "_elmo_lstm.backward": "backward",
}
BILM_NAME = re.compile(r"_token_embedder\.|_elmo_lstm\.(forward|backward)_layer_")
BILM_SCOPE = "_elmo_lstm."  # in `Elmo`, next to mixes such as `scalar_mix_0.gamma`
LAYER_NORM = (
    "AllenNLP's layer norm also counts <S> and </S>, ours counts only words. The mix of the "
    "converted model therefore differs slightly; the layers are equal."
)
# Scope of AllenNLP's other ELMo (Peters et al. 2018b), a biLM of Transformers or gated CNNs.
OTHER_BILM_SCOPE = "_contextualizer."


def recognises(path: Path) -> bool:
    """Recognise an unpacked archive by its weights, and weights by their suffix."""
    if path.is_dir():
        return any((path / name).is_file() for name in WEIGHTS)
    return path.is_file() and path.suffix in SUFFIXES


def read_checkpoint(sources: Sources) -> Checkpoint:
    """Read the biLM of a task model, with the learned scalar mixes."""
    path = sources.checkpoint
    if path.is_dir():
        path = next(path / name for name in WEIGHTS if (path / name).is_file())
    every = many_langs.read_tensors(path)
    scope = _find_scope(path, every)
    tensors = {
        name.removeprefix(scope): tensor
        for name, tensor in every.items()
        if name.startswith(scope) and BILM_NAME.match(name.removeprefix(scope))
    }
    state = rename(_to_common_names(tensors), many_langs.RULES)
    task_path, options_path = path.with_name("config.json"), sources.options or _find_options(path)
    settings = read_options(task_path) if task_path.is_file() else {}
    embedder = _find_embedder(settings)
    if options_path is None and not PUBLISHED.fullmatch(str(embedder.get("options_file"))):
        warn_of_guess(path)
    options = read_options(options_path) if options_path else guess_options(state, path)
    config = make_config(options, state, forget_bias=0.0)
    tokenizer = ElmoTokenizer.from_config(config)
    files = [path, *([task_path] if settings else []), *([options_path] if options_path else [])]
    checkpoint = Checkpoint("allennlp", config, make_state(state), tokenizer, files)
    task = settings.get("model")
    task_name = str((task.get("type") if isinstance(task, dict) else task) or "elmo")
    has_norm = embedder.get("do_layer_norm") is True
    checkpoint.add_mixes(dict(_read_mixes(every, scope, task_name, has_norm)))
    if checkpoint.mixes and has_norm:
        warnings.warn(LAYER_NORM, stacklevel=2)
    num_mixed = sum(len(mix.weights) + 1 for mix in checkpoint.mixes.values())
    if others := len(every) - len(tensors) - num_mixed:
        checkpoint.notes.append(f"{path.name}: {others} tensors of the task's own layers")
    return checkpoint


def _to_common_names(tensors: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    renamed = {}
    for name, tensor in tensors.items():
        if name == CHARACTERS:
            renamed[many_langs.CHARACTERS] = tensor[1:]  # without the row for padding
        else:
            start = next((x for x in RENAMED if name.startswith(x)), "")
            renamed[RENAMED.get(start, "") + name.removeprefix(start)] = tensor
    return renamed


def _find_scope(path: Path, names: Iterable[str]) -> str:
    """Find the common prefix of the biLM's tensor names."""
    scopes = [name.removesuffix(CHARACTERS) for name in names if name.endswith(CHARACTERS)]
    if len(scopes) == 1:
        return scopes[0]
    found = ", ".join(scopes) or list_some(names)
    if any(OTHER_BILM_SCOPE in name for name in names):
        found = "a biLM of Transformers or gated CNNs (Peters et al. 2018b)"
    raise ConversionError(f"{path}: expected one tensor ...{CHARACTERS}, found {found}.")


def _find_embedder(settings: Any) -> dict[str, Any]:
    """Find ELMo's settings in the settings of a task; empty = none."""
    if isinstance(settings, dict) and "options_file" in settings:
        return settings
    nodes = settings.values() if isinstance(settings, dict) else settings
    inner = nodes if isinstance(settings, dict | list) else ()
    return next(filter(None, map(_find_embedder, inner)), {})


def _find_options(weights: Path) -> Path | None:
    """Find the options next to the weights, or in the folder fta of AllenNLP's archives."""
    places = [weights.with_name(f"{weights.stem}_options.json"), weights.with_name("options.json")]
    places += sorted(weights.parent.glob("fta/*options_file"))
    return next((place for place in places if place.is_file()), None)


def _read_mixes(
    every: Mapping[str, FloatArray], scope: str, task: str, layer_norm: bool
) -> Iterator[tuple[str, Mix]]:
    """Yield the name and values of each scalar mix stored beside the biLM."""
    scope = scope.removesuffix(BILM_SCOPE)
    for name, gamma in every.items():
        match = re.fullmatch(rf"{re.escape(scope)}(scalar_mix\w*)\.gamma", name)
        if match is not None:
            names = list_numbered(f"{scope}{match[1]}.scalar_parameters.{{}}", every)
            values = [every[each].item() for each in names]
            yield f"{task}.{match[1]}", Mix(values, gamma.item(), layer_norm)
