"""Format: folders of `save_pretrained`, read and written."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

import hf_elmo
from convert.layout import (
    Checkpoint,
    ConversionError,
    FloatArray,
    Format,
    LazyTensor,
    Mix,
    Sources,
    Writer,
    WriteSettings,
    add_mixes,
)
from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer, make_model_card
from hf_elmo.files.safetensors_header import make_header
from hf_elmo.language_model.vocabulary import (
    PIECES_NAME,
    VOCABULARY_NAME,
    TargetVocabulary,
    read_words,
    write_words,
)
from hf_elmo.model_card import quote
from hf_elmo.stored_model import BILM_PREFIXES

WEIGHTS = "model.safetensors"
MIXES = "scalar_mixes.json"
# Files that the converter, transformers and the Hub write into the folder of a model.
OWN_FILES = re.compile(
    r"(config|tokenizer_config|special_tokens_map|added_tokens|char_vocab|word_vocab)\.json"
    r"|(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?"
    rf"|{re.escape(VOCABULARY_NAME)}|{re.escape(PIECES_NAME)}|{re.escape(MIXES)}"
    r"|README\.md|\.gitattributes"
)
# Patterns of files that only some models have.
OPTIONAL_FILES = (
    *("char_vocab.json", "word_vocab.json", VOCABULARY_NAME, PIECES_NAME, MIXES),
    *("model-*-of-*.safetensors", "model.safetensors.index.json", "pytorch_model*"),
)
MALFORMED = (  # errors of readers for missing files and unexpected JSON
    AttributeError,
    FileNotFoundError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
TOKENIZER_ARGUMENTS = (  # arguments of from_config that the configuration lacks
    "characters",
    "sentence_start",
    "sentence_end",
    "unknown",
    "map_boundary_words",
    "word_pattern",
    *("padding_side", "truncation_side", "model_max_length", "pad_token"),
)


def recognises(path: Path) -> bool:
    """Recognise the folder of an ElmoModel by its configuration."""
    return read_model_type(path) == ElmoConfig.model_type


def read_model_type(folder: Path) -> str:
    """Read the model type in a folder's configuration; empty = none."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config["model_type"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return ""


def find_foreign(folder: Path) -> list[str]:
    """List the names of files and folders that do not belong to a model."""
    code = {path.name for path in Path(hf_elmo.__file__).parent.glob("*.py")}  # of `include_code`
    names = sorted(path.name for path in folder.iterdir() if not _is_hub_cache(path))
    return [name for name in names if name not in code and not OWN_FILES.fullmatch(name)]


def _is_hub_cache(path: Path) -> bool:
    """Return whether a path is the folder that a download from the Hub leaves."""
    is_cache = path.name == ".cache" and path.is_dir()
    return is_cache and all(entry.name in ("huggingface", ".DS_Store") for entry in path.iterdir())


# --- Reading ---


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open a biLM saved by `save_pretrained` or `convert`, and its softmax if there is one.

    Of a head, the biLM and the learned mixes are read.
    """
    folder = sources.checkpoint
    try:
        config = ElmoConfig.from_pretrained(folder)
    except (StrictDataclassError, *MALFORMED) as error:
        cause = error.__cause__ or error  # a StrictDataclassError's cause is readable
        raise ConversionError(f"{folder}: expected an ElmoConfig, got: {cause}") from error
    path = _find_weights(folder)
    if (folder / PIECES_NAME).is_file():
        raise ConversionError(
            f"{folder}: expected a model over characters or words, got one over pieces "
            f"({PIECES_NAME}), which the converter does not support. Use its folder as it is."
        )
    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ConversionError(f"{path}: expected safetensors, got {error}.") from error
    with file:
        names = {name.removeprefix("elmo."): name for name in file.keys()}  # noqa: SIM118
        target_words = None
        if not any(name.startswith("softmax.") for name in names):
            config.vocab_size = 0  # a model that was saved without its softmax keeps the number
        elif (folder / VOCABULARY_NAME).is_file():
            target_words = _read_target_words(folder / VOCABULARY_NAME, config.vocab_size)
        own = [name for name in names if name.startswith((*BILM_PREFIXES, "softmax."))]
        learned = _read_learned_mixes(names, file, config)
        others = [names[name] for name in names if not name.startswith((*own, *learned))]
        left_out = [f"{WEIGHTS}: {name}" for name in others]
        if learned and (folder / MIXES).is_file():
            left_out.append(f"{MIXES}: older than the mixes in {WEIGHTS}")
        if (folder / "README.md").is_file():
            left_out.append("README.md: licence, language and origin")
        checkpoint = Checkpoint(
            config=config,
            tensors={name: _open_tensor(names[name], file) for name in own},
            files=(path, folder / "config.json"),
            target_words=target_words,
            mixes=_read_mixes(folder / MIXES),
            left_out=tuple(left_out),
            **_read_tokenizer(folder, config),
        )
        yield add_mixes(checkpoint, learned) if learned else checkpoint


def _find_weights(folder: Path) -> Path:
    if (folder / "adapter_config.json").is_file():
        raise ConversionError(
            f"{folder}: expected a model without an adapter, got adapter_config.json. Merge "
            "the adapter first: load it with peft, and save what merge_and_unload returns."
        )
    path = folder / WEIGHTS
    if not path.is_file() and (folder / f"{WEIGHTS}.index.json").is_file():
        raise ConversionError(
            f"{folder}: expected the weights in one file, {WEIGHTS}, found several. Load the model "
            f"with from_pretrained, and save it to another folder with save_pretrained(..., "
            'max_shard_size="100GB").'
        )
    if not path.is_file():
        raise ConversionError(f"{folder}: expected {WEIGHTS} in it, found none.")
    return path


def _read_target_words(path: Path, num_rows: int) -> tuple[str, ...]:
    try:
        words = tuple(read_words(path))
    except ValueError as error:
        raise ConversionError(str(error)) from error
    if len(words) != num_rows:
        raise ConversionError(
            f"{path}: expected {num_rows} words, one per row of the softmax, got {len(words)}."
        )
    return words


def _read_tokenizer(folder: Path, config: ElmoConfig) -> dict[str, Any]:
    """Read the tokenizer's arguments; a byte-based biLM may be saved without a tokenizer."""
    if not (folder / "tokenizer_config.json").is_file():
        return {}
    try:
        tokenizer = ElmoTokenizer.from_pretrained(folder)
    except MALFORMED as error:
        raise ConversionError(f"{folder}: expected an ElmoTokenizer, got: {error}") from error
    return {
        "words": tokenizer.word_vocab and tuple(tokenizer.word_vocab),
        "characters": tokenizer.char_vocab and tuple(tokenizer.char_vocab),
        "tokenizer": {name: getattr(tokenizer, name) for name in TOKENIZER_ARGUMENTS},
    }


def _read_mixes(path: Path) -> dict[str, Mix]:
    """Read the learned mixes of a converted model."""
    if not path.is_file():
        return {}
    try:
        mixes = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Mix(tuple(map(float, mix["weights"])), float(mix["gamma"]), mix["layer_norm"])
            for name, mix in mixes.items()
        }
    except MALFORMED as error:
        raise ConversionError(f"{path}: expected scalar mixes by name, got: {error!r}.") from error


def _read_learned_mixes(
    names: dict[str, str], file: safe_open, config: ElmoConfig
) -> dict[str, Mix]:
    """Read the mixes of a head; `names` has the names of its tensors without a prefix."""
    mixes: dict[str, Mix] = {}
    while (name := f"features.scalar_mixes.{len(mixes)}") + ".weights" in names:
        weights, gamma = (file.get_tensor(names[f"{name}.{x}"]) for x in ("weights", "gamma"))
        mixes[name] = Mix(tuple(weights.tolist()), gamma.item(), config.mix_layer_norm != "none")
    return mixes


def _open_tensor(name: str, file: safe_open) -> LazyTensor:
    stored = file.get_slice(name)
    if stored.get_dtype() not in ("F64", "F32", "F16", "BF16"):
        raise ConversionError(f"{name}: expected floating-point numbers, got {stored.get_dtype()}.")

    def read_rows(start: int, stop: int) -> FloatArray:
        rows: torch.Tensor = stored[start:stop]
        return rows.float().numpy()

    return LazyTensor(name, tuple(stored.get_shape()), read_rows)


# --- Writing ---


def check_checkpoint(checkpoint: Checkpoint, target: Path, dtype: str) -> None:
    """Check that the softmax's words, if there are any, form a valid `TargetVocabulary`."""
    try:
        if checkpoint.target_words is not None:
            TargetVocabulary(checkpoint.target_words)
            if not checkpoint.target_words[-1]:  # `read_words` would skip it
                raise ValueError("Expected a word in its last line, got an empty line.")
    except ValueError as error:
        raise ConversionError(f"The softmax's vocabulary: {error}") from error


def write_checkpoint(checkpoint: Checkpoint, path: Path, settings: WriteSettings) -> None:
    """Write a folder for `from_pretrained`: model, tokenizer, model card."""
    path.mkdir()
    has_softmax = "softmax.weight" in checkpoint.tensors
    config = copy.deepcopy(checkpoint.config)
    if checkpoint.target_words is not None:
        config.update(TargetVocabulary(checkpoint.target_words).describe())
    config.architectures = [(ElmoForPreTraining if has_softmax else ElmoModel).__name__]
    vars(config).pop("auto_map", None)  # names code that is not written
    config.dtype = "float32"  # even if the file has half precision, which is slow on CPUs
    config.save_pretrained(path)
    tensors = {
        f"elmo.{name}" if has_softmax and not name.startswith("softmax.") else name: tensor
        for name, tensor in checkpoint.tensors.items()
    }
    write_safetensors(path / WEIGHTS, tensors, settings.dtype)
    try:
        tokenizer = ElmoTokenizer.from_config(
            config,
            char_vocab=checkpoint.characters,
            word_vocab=checkpoint.words,
            **checkpoint.tokenizer,
        )
    except ValueError as error:
        raise ConversionError(f"The vocabulary does not fit the model: {error}") from error
    tokenizer.save_pretrained(path)
    if checkpoint.target_words is not None:
        write_words(path / VOCABULARY_NAME, checkpoint.target_words)
    if checkpoint.mixes:
        mixes = {name: asdict(mix) for name, mix in checkpoint.mixes.items()}
        (path / MIXES).write_text(json.dumps(mixes, indent=2) + "\n", encoding="utf-8")
    card = make_model_card(
        config,
        name=path.name,
        license=settings.weights_license,
        language=checkpoint.languages,
        source=" ".join(_describe_origin(checkpoint, settings)),
        files=settings.files,
    )
    (path / "README.md").write_text(card, encoding="utf-8", errors="backslashreplace")


def _describe_origin(checkpoint: Checkpoint, settings: WriteSettings) -> Iterator[str]:
    """Yield sentences on the origin of the weights, for the model card."""
    program = f"spacy-elmo {version('spacy-elmo')}"
    yield f"Converted from {quote(settings.source)} (format {settings.format}) by {program}."
    yield from checkpoint.origin
    if checkpoint.mixes:
        names = ", ".join(map(quote, checkpoint.mixes))
        yield f"`{MIXES}` contains the learned scalar mixes: {names}."
    if checkpoint.left_out:
        yield f"Omitted: {'; '.join(map(quote, checkpoint.left_out))}."


def write_safetensors(path: Path, tensors: Mapping[str, LazyTensor], dtype: str) -> None:
    """Write tensors in blocks of rows, to limit memory."""
    shapes = {name: (dtype, tensor.shape) for name, tensor in tensors.items()}
    header, _ = make_header(shapes, {"format": "pt"})
    number_type = getattr(torch, dtype)
    with path.open("xb") as file:
        file.write(header)
        for tensor in tensors.values():
            for block in tensor.blocks():
                rows = torch.from_numpy(np.ascontiguousarray(block)).to(number_type)
                if dtype != "float32" and not rows.isfinite().all():
                    raise ConversionError(f"{tensor.source}: values are too large for {dtype}.")
                file.write(rows.reshape(-1).view(torch.uint8).numpy().data)


FORMAT = Format(
    name="huggingface",
    description="folder of config.json, model.safetensors and tokenizer, for from_pretrained",
    recognises=recognises,
    companions=(),
    open=open_checkpoint,
    writer=Writer(check_checkpoint, write_checkpoint),
)
