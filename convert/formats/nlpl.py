"""Format: meta.json of the NLPL repository (vectors.nlpl.eu), with files of another format."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from convert import unpack
from convert.formats import bilm_hdf5, bilm_options, many_langs
from convert.layout import Checkpoint, ConversionError, Format, Sources
from hf_elmo.model_card import quote

META = "meta.json"
PACKED_VOCABULARY = "vocab.txt.gz"
MAX_TEXT = 300
MAX_TOKENS = 10**15  # of a corpus
NORWEGIAN = {"nor": "nob"}  # the repository's code, and the code of Bokmål


def recognises(path: Path) -> bool:
    """Recognise an unpacked model by its files."""
    return (path / META).is_file() and (many_langs.recognises(path) or any(path.glob("*.hdf5")))


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open a model of the NLPL repository."""
    folder = sources.checkpoint
    meta = bilm_options.read_options(folder / META)
    with ExitStack() as stack:
        if many_langs.recognises(folder):
            for name in ("vocabulary", "softmax", "token_embeddings"):
                if getattr(sources, name) is not None:
                    option = name.replace("_", "-")
                    raise ConversionError(
                        f"{folder}: expected no --{option} for files of ELMoForManyLangs."
                    )
            checkpoint = stack.enter_context(many_langs.open_checkpoint(sources))
        else:
            sources = replace(sources, checkpoint=_find_weights(folder, meta))
            packed = folder / PACKED_VOCABULARY
            if sources.vocabulary is None and packed.is_file():
                place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                unpack.unpack(packed, place)
                sources = replace(sources, vocabulary=place / packed.stem)
            checkpoint = stack.enter_context(bilm_hdf5.open_checkpoint(sources))
        yield replace(
            checkpoint,
            files=(*checkpoint.files, folder / META),
            origin=tuple(_describe(meta)),
            languages=tuple(_list_languages(meta)),
        )


def _find_weights(folder: Path, meta: dict[str, Any]) -> Path:
    """Find the weights; if there are several files, use the one that meta.json names."""
    files = sorted(folder.glob("*.hdf5"))
    named = {str(item.get("filename")) for item in _list_objects(meta, "contents")}
    chosen = [path for path in files if path.name in named] or files
    if len(chosen) > 1:
        names = ", ".join(path.name for path in chosen)
        raise ConversionError(f"{folder}: expected one weights file, found {names}.")
    return chosen[0]


# --- The description ---


def _list_objects(meta: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """List the objects under a name; a single object may be stored without a list."""
    value = meta.get(name)
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, dict)]


def _describe(meta: dict[str, Any]) -> Iterator[str]:
    """Yield sentences on the origin of the model."""
    handle, creators = meta.get("handle") or meta.get("id"), _list_objects(meta, "creators")
    if isinstance(handle, str | int):
        yield f"Model {quote(_text(handle))} of the NLPL repository."
    if creators:
        yield f"Trained by {', '.join(quote(_text(person.get('name'))) for person in creators)}."
    for corpus in _list_objects(meta, "corpus"):
        tokens = corpus.get("tokens")
        size = f" ({tokens:,} tokens)" if isinstance(tokens, int) and tokens < MAX_TOKENS else ""
        yield f"Corpus: {quote(_text(corpus.get('description')))}{size}."


def _text(value: object) -> str:
    """Convert any value to one short line of text."""
    return " ".join(str(value or "not named").split())[:MAX_TEXT].rstrip(".")


def _list_languages(meta: dict[str, Any]) -> Iterator[str]:
    """Yield the two-letter language codes of the corpora, as used by the Hub and spaCy."""
    names = {str(corpus.get("language")) for corpus in _list_objects(meta, "corpus")}
    codes = {NORWEGIAN.get(name, name) for name in names}
    if codes:
        from spacy.util import find_matching_language  # slow to import

        yield from sorted(filter(None, map(find_matching_language, codes)))


FORMAT = Format(
    name="nlpl",
    description="model of the NLPL repository: meta.json with model.hdf5 or ELMoForManyLangs files",
    recognises=recognises,
    companions=("options", "vocabulary", "softmax", "token_embeddings"),
    open=open_checkpoint,
)
