"""Convert a checkpoint: read, load strictly, save, check, and move the target into place."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from convert.checkpoint import Checkpoint, ConversionError
from convert.detect import find_checkpoint
from convert.fetch import fetch, is_address
from convert.formats import bilm_hdf5, hf_folder
from convert.verification import TOLERANCES, verify_model
from hf_elmo import ElmoForPreTraining, ElmoModel, make_model_card
from hf_elmo.model_card import quote

TARGETS = (hf_folder.NAME, bilm_hdf5.NAME)
BENCHMARK = "tokenised English with case, as in the One Billion Word Benchmark"
TEXTS = {  # of families of published models, by a part of their name or format
    "allenai/original": BENCHMARK,
    "allenai/small": BENCHMARK,
    "allenai/medium": BENCHMARK,
    "tfhub/": BENCHMARK,
    "many-langs/": "text with case, tokenised as in Universal Dependencies",
    "seqvec/": "proteins, one amino acid a token, in capital letters",
}


def convert_checkpoint(
    source: Path | str,
    target: Path | str,
    *,
    to: str = hf_folder.NAME,
    dtype: str = "float32",
    weights_license: str | None = None,
    verify: Path | str | None = None,
    sentences: Path | str | None = None,
    force: bool = False,
    **fetching: Any,
) -> Checkpoint:
    """Convert a biLM from one format to another, in memory.

    Args:
        source: File, folder, archive, web address, name of a published model, or Hub name.
        target: Folder to write; a file for "bilm-hdf5", which has other files beside it.
        to: "huggingface" or "bilm-hdf5".
        dtype: "float32", "float16" or "bfloat16".
        weights_license: Licence of the weights, for the model card; None = unknown.
        verify: File of the original implementation's activations, see `verify_model`.
        sentences: Text file with the sentences of `verify`.
        force: Replace the files of an existing target that are written.
        **fetching: See `convert.fetch.fetch`: `options`, `vocabulary`, `softmax`, `revision`.

    Raises:
        ConversionError: If the source is broken, the target exists, its format does not support
            the biLM, or the verification fails.
    """
    target = Path(target)
    if to not in TARGETS or dtype not in TOLERANCES:
        formats, dtypes = " or ".join(TARGETS), ", ".join(TOLERANCES)
        raise ConversionError(f"Expected to write {formats} in {dtypes}, got {to} in {dtype}.")
    if to == bilm_hdf5.NAME and (verify is not None or dtype != "float32"):
        raise ConversionError(f"--verify and --dtype need --to {hf_folder.NAME}.")
    places = [target] if to == hf_folder.NAME else bilm_hdf5.list_files(target)
    if not force and (existing := [path for path in places if path.exists()]):
        raise ConversionError(f"{existing[0]}: is there already. Replace it with --force.")
    fetching = {name: str(x) if isinstance(x, Path) else x for name, x in fetching.items()}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        work, new = Path(temporary), Path(temporary, "new", target.name)
        new.parent.mkdir()
        sources, published = fetch(str(source), work, **fetching)
        path, known = find_checkpoint(sources.checkpoint, work)
        checkpoint: Checkpoint = known.read_checkpoint(replace(sources, checkpoint=path))
        checkpoint.source = _name_source(str(source))
        if published is not None:
            checkpoint.origin += published.describe()
            checkpoint.languages = checkpoint.languages or published.languages
            weights_license = weights_license or published.hub_license
        model = _load(checkpoint, getattr(torch, dtype))
        if to == hf_folder.NAME:
            _write_folder(checkpoint, model, new, weights_license)
        else:
            bilm_hdf5.write_checkpoint(checkpoint, new)
        if verify is not None:
            checkpoint.difference = verify_model(new, verify, sentences, dtype=dtype)
        _move_into_place(new, target)
    return checkpoint


def _name_source(source: str) -> str:
    """Name a source without folders, user name, password or token."""
    if is_address(source):
        parts = urlsplit(source)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return Path(source).name if Path(source).exists() else source


def _load(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """Load the tensors into a model, which refuses missing, surplus and misshapen tensors."""
    has_softmax = "softmax.weight" in checkpoint.state
    state = {
        f"elmo.{name}" if has_softmax and not name.startswith("softmax.") else name: tensor
        for name, tensor in checkpoint.state.items()
    }
    with torch.device("meta"):
        model: Any = (ElmoForPreTraining if has_softmax else ElmoModel)(checkpoint.config)
    try:
        model.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConversionError(f"{checkpoint.files[0]}: do the options fit? {reason}") from error
    model.to(dtype)
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ConversionError(
                f"{checkpoint.files[0]}: expected finite values in {name}, in {dtype}."
            )
    return model.eval()


# --- The target ---


def _write_folder(
    checkpoint: Checkpoint, model: Any, folder: Path, weights_license: str | None
) -> None:
    """Write a folder for `from_pretrained`: model, tokenizer, words, mixes and card."""
    folder.mkdir()
    model.save_pretrained(folder, max_shard_size="100GB")
    model.config.dtype = "float32"  # even if the file has half precision, which is slow on CPUs
    model.config.save_pretrained(folder)
    checkpoint.tokenizer.save_pretrained(folder)
    if checkpoint.target_words is not None:
        text = "".join(f"{word}\n" for word in checkpoint.target_words)
        (folder / hf_folder.VOCABULARY_NAME).write_text(text, encoding="utf-8", newline="\n")
    if checkpoint.mixes:
        mixes = {name: asdict(mix) for name, mix in checkpoint.mixes.items()}
        (folder / hf_folder.MIXES).write_text(json.dumps(mixes, indent=2), encoding="utf-8")
    card = make_model_card(
        checkpoint.config,
        name=folder.name,
        license=weights_license,
        language=checkpoint.languages,
        source=" ".join(_describe_origin(checkpoint)),
        files=[(path.name, hash_file(path)) for path in checkpoint.files],
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe_origin(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield sentences on the origin of the weights and on the text that they expect."""
    program = f"spacy-elmo {version('spacy-elmo')}"
    yield f"Converted from {quote(checkpoint.source)} (format {checkpoint.format}) by {program}."
    yield from checkpoint.origin
    name = f"{checkpoint.source} {checkpoint.format}/"
    text = next((text for start, text in TEXTS.items() if start in name), None)
    yield f"Training text: {text or 'its tokenisation and case are not recorded'}."
    units = "words of a lexicon" if not checkpoint.config.char_embedding_size else "UTF-8 bytes"
    units = units if checkpoint.tokenizer.char_vocab is None else "code points"
    yield f"The model reads {units} as they are, without a change of case or Unicode form."
    if checkpoint.mixes:
        names = ", ".join(map(quote, checkpoint.mixes))
        yield f"`{hf_folder.MIXES}` contains the learned scalar mixes: {names}."
    if checkpoint.notes:
        yield f"Omitted: {'; '.join(map(quote, checkpoint.notes))}."


def _move_into_place(new: Path, target: Path) -> None:
    """Rename the new files, the most important one last; keep all other files of the target."""
    if new.is_dir() and not target.exists():
        new.rename(target)
        return
    if new.is_dir():
        last, optional = new / "config.json", [target / name for name in hf_folder.OPTIONAL_FILES]
    else:
        last, optional = new, bilm_hdf5.list_files(target)[1:]
    for path in optional:
        if path.exists() and not (last.parent / path.name).exists():
            raise ConversionError(
                f"{path}: would be read with the new model, which has no such file. Move it."
            )
    for path in sorted(last.parent.iterdir(), key=lambda path: path == last):
        path.replace((target if new.is_dir() else target.parent) / path.name)
