"""Format: TensorFlow 1 checkpoints of bilm-tf, and modules of TF-Hub and DeepPavlov."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from convert.formats import bilm_options, bilm_variables
from convert.formats.tensor_bundle import read_variables
from convert.formats.tensor_rearrangement import list_numbered
from convert.layout import Checkpoint, ConversionError, Format, LazyTensor, Mix, Sources, add_mixes

INDEX = ".index"
FILE_NAME = re.compile(r"(.+)\.(index|meta|data-\d{5}-of-\d{5})")
# Modules store their checkpoint in variables/, DeepPavlov's language models in saves/.
FOLDERS = (".", "variables", "saves")
VOCABULARIES = ("vocab.txt", "vocab-2016-09-10.txt")  # the second one: bilm-tf's checkpoint
# bilm-tf's names in the scope of a biLM. All other variables there are the last LSTM states.
BILM_NAME = re.compile(
    r"char_embed|embedding|(CNN|CNN_high_\d+|CNN_proj|softmax)/\w+|RNN_[01]/.+/LSTMCell/\w+"
)
# Suffixes of a mix's weights and gamma: TF-Hub; `weight_layers` of bilm-tf and DeepPavlov.
MIX_NAMES = (("/weights", "/scaling"), ("_ELMo_W", "_ELMo_gamma"))


def recognises(path: Path) -> bool:
    """Recognise a checkpoint by the names of its files."""
    if path.is_dir():
        return bool(_list_prefixes(path))
    is_named_so = path.name == "checkpoint" or FILE_NAME.fullmatch(path.name) is not None
    return (path.is_file() and is_named_so) or _index(path).is_file()


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open a biLM in a TensorFlow 1 checkpoint."""
    prefix = find_prefix(sources.checkpoint)
    index = _index(prefix)
    files = [index, *sorted(prefix.parent.glob(f"{prefix.name}.data-*"))]
    every = _without_slots(read_variables(prefix))
    scope = _find_scope(index, every)
    variables = _bilm_variables(scope, every)
    # A folder of a module has its options outside; above other folders is another model.
    is_module = prefix.parent.name in FOLDERS
    options_path = sources.options or _find(prefix, "options.json", looks_above=is_module)
    if options_path is None:
        options = guess_options(variables)
        bilm_options.warn_of_guess(index)
    else:
        options = bilm_options.read_options(options_path)
        files.append(options_path)
    vocabulary = sources.vocabulary or _find(prefix, *VOCABULARIES)
    checkpoint = bilm_variables.gather_checkpoint(
        options, variables, files=tuple(files), vocabulary=vocabulary
    )
    mixes = _find_mixes(every)
    taken = [*variables.values(), *chain.from_iterable(mixes.values())]
    sources_taken = {tensor.source for tensor in taken}
    others = [name for name, tensor in every.items() if tensor.source not in sources_taken]
    checkpoint = add_mixes(checkpoint, {name: _read_mix(*pair) for name, pair in mixes.items()})
    yield replace(checkpoint, left_out=(*checkpoint.left_out, *_describe(others)))


# --- Files ---


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + INDEX)


def _list_prefixes(folder: Path) -> list[Path]:
    """List the checkpoints in the first of `FOLDERS` that contains any."""
    for place in FOLDERS:
        indices = sorted((folder / place).glob(f"*{INDEX}"))
        if indices:
            return [path.with_name(path.name.removesuffix(INDEX)) for path in indices]
    return []


def find_prefix(path: Path) -> Path:
    """Find the only or latest checkpoint of a folder or file; return its path without ".index"."""
    match = FILE_NAME.fullmatch(path.name)
    if path.is_dir() or path.name == "checkpoint":
        prefixes = _list_prefixes(path if path.is_dir() else path.parent)
        latest = [prefix for prefix in prefixes if prefix.name == _read_latest(prefix.parent)]
        prefixes = latest or prefixes
    else:
        prefixes = [path if match is None else path.with_name(match[1])]
    if len(prefixes) > 1:
        names = ", ".join(prefix.name for prefix in prefixes[:10])
        raise ConversionError(
            f"{path}: expected one TensorFlow checkpoint, found {names}. Pass the .index "
            "file of one."
        )
    if not prefixes or not _index(prefixes[0]).is_file():
        raise ConversionError(f"{path}: expected a TensorFlow checkpoint, found no .index file.")
    return prefixes[0]


def _read_latest(folder: Path) -> str | None:
    """Read the name of the latest checkpoint from the trainer's file `checkpoint`."""
    path = folder / "checkpoint"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        match = re.match(r'model_checkpoint_path: "(?:.*/)?([^/"]+)"$', file.readline(1 << 16))
    return match[1] if match else None


def _find(prefix: Path, *names: str, looks_above: bool = True) -> Path | None:
    """Find a file next to a checkpoint, or in the parent folder."""
    folders = prefix.parents[: 2 if looks_above else 1]
    places = [folder / name for folder in folders for name in names]
    return next((place for place in places if place.is_file()), None)


# --- Variables ---


def _without_slots(variables: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Remove the variables of optimisers, such as `lm/char_embed/Adagrad`."""
    return {
        name: tensor
        for name, tensor in variables.items()
        if name.rpartition("/")[0] not in variables
    }


def _find_scope(index: Path, names: Iterable[str]) -> str:
    """Find the prefix of the biLM's names: "lm/" (trainer), "bilm/" or "module/bilm/" (modules)."""
    for table in ("char_embed", "embedding"):
        scopes = [name.removesuffix(table) for name in names if name.rpartition("/")[2] == table]
        if len(scopes) > 1:
            raise ConversionError(
                f"{index}: expected one biLM, found several: {', '.join(scopes[:10])}."
            )
        if scopes:
            return scopes[0]
    found = ", ".join(list(names)[:10]) or "none"
    raise ConversionError(
        f"{index}: expected a biLM, with a variable char_embed or embedding; found {found}."
    )


def _bilm_variables(scope: str, every: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Map the biLM's variables to their standard names."""
    variables = {}
    for name, tensor in every.items():
        standard = bilm_variables.standard_name(name.removeprefix(scope))
        if name.startswith(scope) and BILM_NAME.fullmatch(standard):
            is_table = standard in ("char_embed", "embedding")
            variables[standard] = bilm_variables.without_empty_row(tensor) if is_table else tensor
    return variables


def guess_options(variables: Mapping[str, LazyTensor]) -> dict[str, Any]:
    """Infer the options of a biLM from its variables."""
    cells = list_numbered("RNN_0/RNN/MultiRNNCell/Cell{}/LSTMCell/W_0", variables)
    if not cells or len(cells[0].shape) != 2:
        raise ConversionError(
            f"Expected LSTM weights, found {', '.join(list(variables)[:10])}. "
            "Pass the options of the model with --options."
        )
    size, gates = cells[0].shape
    convolutions = list_numbered("CNN/W_cnn_{}", variables)
    return bilm_options.guess_options(
        projection_size=size // 2,
        cell_size=gates // 4,
        num_layers=len(cells),
        bidirectional=any(name.startswith("RNN_1/") for name in variables),
        char_embedding_size=convolutions[0].shape[-2] if convolutions else 0,
        filters=[(tensor.shape[1], tensor.shape[-1]) for tensor in convolutions],
        num_highways=len(list_numbered("CNN_high_{}/W_carry", variables)),
    )


def _find_mixes(every: Mapping[str, LazyTensor]) -> dict[str, tuple[LazyTensor, LazyTensor]]:
    """Find the weights and gamma of each scalar mix, by the prefix of their names."""
    return {
        name.removesuffix(weights): (every[name], every[name.removesuffix(weights) + gamma])
        for weights, gamma in MIX_NAMES
        for name in every
        if name.endswith(weights) and name.removesuffix(weights) + gamma in every
    }


def _read_mix(weights: LazyTensor, gamma: LazyTensor) -> Mix:
    if gamma.shape != (1,):
        raise ConversionError(f"{gamma.source}: expected one value, got shape {list(gamma.shape)}.")
    return Mix(tuple(weights.read().ravel().tolist()), float(gamma.read()[0]))


def _describe(names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        yield f"variables {', '.join(names[:10])}{more}"


FORMAT = Format(
    name="tensorflow",
    description="checkpoint of bilm-tf, or module of TF-Hub or DeepPavlov (TensorFlow 1)",
    recognises=recognises,
    open=open_checkpoint,
)
