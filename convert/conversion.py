"""Convert a checkpoint: read, load strictly, save, check, and move the target into place."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from convert.catalogue import Published
from convert.checkpoint import Checkpoint, ConversionError, quote
from convert.detect import find_checkpoint
from convert.fetch import fetch, is_address
from convert.formats import bilm_hdf5, hf_folder
from convert.verification import verify_model
from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel, make_model_card

TARGETS = (hf_folder.NAME, bilm_hdf5.NAME)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Text of the families of published models, by the start of their names.
TEXTS = {
    "allenai/": "tokenised English with case, as in the One Billion Word Benchmark",
    "tfhub/": "tokenised English with case, as in the One Billion Word Benchmark",
    "many-langs/": "text with case, tokenised as in Universal Dependencies",
    "seqvec/": "proteins, one amino acid a token, in capital letters",
}


@dataclass(frozen=True)
class Conversion:
    """Result of `convert_checkpoint`.

    Attributes:
        source: Name of the source.
        format: Name of the source's format.
        files: Name and SHA-256 of each file that was read.
        config: Configuration of the biLM.
        num_parameters: Number of parameters, including padding rows.
        notes: Omitted parts of the source, one line each.
        difference: Largest difference from the stored activations; None = not verified.
    """

    source: str
    format: str
    files: tuple[tuple[str, str], ...]
    config: ElmoConfig
    num_parameters: int
    notes: tuple[str, ...]
    difference: float | None = None


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
) -> Conversion:
    """Convert a biLM from one format to another, in memory.

    The target is written beside its path, and then renamed.

    Args:
        source: File, folder, archive, web address, name of a published model, or Hub name.
        target: Folder to write; a file for "bilm-hdf5", which has other files beside it.
        to: Format of the target: "huggingface" or "bilm-hdf5".
        dtype: Data type of a folder's weights: "float32", "float16" or "bfloat16".
        weights_license: Licence of the weights, for the model card; None = unknown.
        verify: File of the original implementation's activations, see `verify_model`; None = skip.
        sentences: Text file with the sentences of `verify`.
        force: Replace the files of an existing target that are written.
        **fetching: Other files and options of `convert.fetch.fetch`: `options`, `vocabulary`,
            `softmax`, `revision`, `progress`.

    Raises:
        ConversionError: If the source is broken or not a biLM, the target exists, its format does
            not support the biLM, or the verification fails.
        OSError: If a file cannot be read or written.
    """
    target = Path(target)
    if to not in TARGETS or dtype not in DTYPES:
        raise ConversionError(
            f"Expected to write {' or '.join(TARGETS)} in {', '.join(DTYPES)}, got {to}, {dtype}."
        )
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
        checkpoint = known.read(replace(sources, checkpoint=path))
        conversion = _describe(str(source), checkpoint)
        if published is not None:
            checkpoint.languages = checkpoint.languages or published.languages
            weights_license = weights_license or published.hub_license
        model = _load(checkpoint, DTYPES[dtype], conversion.source)
        if to == hf_folder.NAME:
            _write_folder(checkpoint, model, new)
            card = _make_card(conversion, checkpoint, new.name, published, weights_license)
            (new / "README.md").write_text(card, encoding="utf-8")
        else:
            bilm_hdf5.write_checkpoint(checkpoint, new)
        if verify is not None:
            text = None if sentences is None else Path(sentences)
            difference = verify_model(new, Path(verify), text, dtype=dtype)
            conversion = replace(conversion, difference=difference)
        _move_into_place(new, target)
    return conversion


def _describe(source: str, checkpoint: Checkpoint) -> Conversion:
    name = source if not Path(source).exists() else Path(source).name
    if is_address(source):  # without user name, password or token
        parts = urlsplit(source)
        name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    files = []
    for path in checkpoint.files:
        with path.open("rb") as file:
            files.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return Conversion(
        source=name,
        format=checkpoint.format,
        files=tuple(files),
        config=checkpoint.config,
        num_parameters=sum(tensor.numel() for tensor in checkpoint.state.values()),
        notes=tuple(checkpoint.notes),
    )


def _load(checkpoint: Checkpoint, dtype: torch.dtype, source: str) -> Any:
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
        raise ConversionError(f"{source}: weights and options do not fit. {reason}") from error
    model.to(dtype)
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ConversionError(f"{source}: expected finite values in {name}, in {dtype}.")
    return model.eval()


# --- The target ---


def _write_folder(checkpoint: Checkpoint, model: Any, folder: Path) -> None:
    """Write a folder for `from_pretrained`: model, tokenizer, words and mixes."""
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
        text = json.dumps(mixes, indent=2) + "\n"
        (folder / hf_folder.MIXES).write_text(text, encoding="utf-8")


def _make_card(
    conversion: Conversion,
    checkpoint: Checkpoint,
    name: str,
    published: Published | None,
    weights_license: str | None,
) -> str:
    lines = [f"- {quote(file)}, SHA-256 `{checksum}`" for file, checksum in conversion.files]
    origin = " ".join(_describe_origin(conversion, checkpoint, published))
    return make_model_card(
        checkpoint.config,
        name=name,
        license=weights_license,
        language=checkpoint.languages,
        source="\n".join([origin, "", *lines]),
    )


def _describe_origin(
    conversion: Conversion, checkpoint: Checkpoint, published: Published | None
) -> Iterator[str]:
    """Yield sentences on the origin of the weights and on the text that they expect."""
    program = f"spacy-elmo {version('spacy-elmo')}"
    yield f"Converted from {quote(conversion.source)} (format {conversion.format}) by {program}."
    yield from checkpoint.origin
    if published is not None:
        yield from published.describe()
    texts = [text for start, text in TEXTS.items() if conversion.source.startswith(start)]
    if texts or checkpoint.format == "many-langs":
        yield f"Training text: {(texts or [TEXTS['many-langs/']])[0]}."
    else:
        yield "Tokenisation and case of the training text are not recorded: use the same."
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
