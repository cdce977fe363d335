"""Format: TensorFlow 1 checkpoints of bilm-tf, and modules of TF-Hub and DeepPavlov."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from convert.checkpoint import Checkpoint, ConversionError, Mix, Sources, list_some
from convert.formats import bilm_names, bilm_options
from convert.formats.tensor_bundle import read_variables

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
    has_name = path.name == "checkpoint" or FILE_NAME.fullmatch(path.name) is not None
    return (path.is_file() and has_name) or _index(path).is_file()


def read_checkpoint(sources: Sources) -> Checkpoint:
    """Read a biLM in a TensorFlow 1 checkpoint."""
    prefix = find_prefix(sources.checkpoint)
    index = _index(prefix)
    files = [index, *sorted(prefix.parent.glob(f"{prefix.name}.data-*"))]
    every = read_variables(prefix)
    # Without the variables of optimisers, such as lm/char_embed/Adagrad.
    every = {name: x for name, x in every.items() if name.rpartition("/")[0] not in every}
    scope = _find_scope(index, every)
    variables, taken = {}, set()
    for name, array in every.items():
        standard = bilm_names.standard_name(name.removeprefix(scope))
        if name.startswith(scope) and BILM_NAME.fullmatch(standard):
            variables[standard] = array
            taken.add(name)
    # A folder of a module has its options outside; above other folders is another model.
    above = prefix.parents[: 2 if prefix.parent.name in FOLDERS else 1]
    options_path = sources.options or _find(above, "options.json")
    if options_path is None:
        bilm_options.warn_of_guess(index)
    else:
        files.append(options_path)
    options = bilm_options.read_options(options_path) if options_path else None
    vocabulary = sources.vocabulary or _find(prefix.parents[:2], *VOCABULARIES)
    checkpoint = bilm_names.make_checkpoint("tensorflow", options, variables, files, vocabulary)
    mixes = {}
    for name, (weights, gamma) in _find_mixes(every).items():
        mixes[name] = Mix(every[weights].ravel().tolist(), every[gamma].item())
        taken |= {weights, gamma}
    checkpoint.add_mixes(mixes)
    if others := every.keys() - taken:
        checkpoint.notes.append(f"variables {list_some(sorted(others))}")
    return checkpoint


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
    if len(prefixes) != 1:
        names = list_some(prefix.name for prefix in prefixes)
        raise ConversionError(
            f"{path}: expected one TensorFlow checkpoint, found {names}. Pass the .index file of "
            "one."
        )
    return prefixes[0]


def _read_latest(folder: Path) -> str | None:
    """Read the name of the latest checkpoint from the trainer's file `checkpoint`."""
    path = folder / "checkpoint"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    match = re.match(r'model_checkpoint_path: "(?:.*/)?([^/"\n]+)"', text)
    return match[1] if match else None


def _find(folders: Sequence[Path], *names: str) -> Path | None:
    places = [folder / name for folder in folders for name in names]
    return next((place for place in places if place.is_file()), None)


# --- Variables ---


def _find_scope(index: Path, names: Iterable[str]) -> str:
    """Find the prefix of the biLM's names: "lm/" (trainer), "bilm/" or "module/bilm/" (modules)."""
    for table in ("char_embed", "embedding"):
        scopes = [name.removesuffix(table) for name in names if name.rpartition("/")[2] == table]
        if len(scopes) > 1:
            raise ConversionError(f"{index}: expected one biLM, found {list_some(scopes)}.")
        if scopes:
            return scopes[0]
    raise ConversionError(
        f"{index}: expected a variable char_embed or embedding, found {list_some(names)}."
    )


def _find_mixes(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Find the names of the weights and gamma of each scalar mix, by the prefix of both."""
    return {
        (prefix := name.removesuffix(weights)): (name, prefix + gamma)
        for weights, gamma in MIX_NAMES
        for name in names
        if name.endswith(weights) and name.removesuffix(weights) + gamma in names
    }
