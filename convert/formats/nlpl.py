"""Format: meta.json of the NLPL repository (vectors.nlpl.eu), with files of another format."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from convert.checkpoint import Checkpoint, ConversionError, Sources
from convert.formats import bilm_hdf5, many_langs
from convert.formats.bilm_options import read_options
from hf_elmo.model_card import quote

META, PACKED_VOCABULARY = "meta.json", "vocab.txt.gz"
NORWEGIAN = {"nor": "nob"}  # the repository's code, and the code of Bokmål


def recognises(path: Path) -> bool:
    """Recognise an unpacked model by its files."""
    return (path / META).is_file() and (many_langs.recognises(path) or any(path.glob("*.hdf5")))


def read_checkpoint(sources: Sources) -> Checkpoint:
    """Read a model of the NLPL repository."""
    folder = sources.checkpoint
    meta = read_options(folder / META)
    if many_langs.recognises(folder):
        checkpoint = many_langs.read_checkpoint(sources)
    else:
        packed = folder / PACKED_VOCABULARY
        words = sources.vocabulary or (packed if packed.is_file() else None)
        sources = replace(sources, checkpoint=_find_weights(folder, meta), vocabulary=words)
        checkpoint = bilm_hdf5.read_checkpoint(sources)
    checkpoint.format = "nlpl"
    checkpoint.files.append(folder / META)
    checkpoint.origin = list(_describe(meta))
    checkpoint.languages = _list_languages(meta)
    return checkpoint


def _find_weights(folder: Path, meta: dict[str, Any]) -> Path:
    """Find the weights; if there are several files, use the one that meta.json names."""
    files = sorted(folder.glob("*.hdf5"))
    named = {str(item.get("filename")) for item in _list_objects(meta, "contents")}
    chosen = [path for path in files if path.name in named] or files
    if len(chosen) > 1:
        names = ", ".join(path.name for path in chosen)
        raise ConversionError(f"{folder}: expected one weights file, found {names}.")
    return chosen[0]


def _list_objects(meta: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """List the objects under a name; a single object may be stored without a list."""
    value = meta.get(name)
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, dict)]


def _describe(meta: dict[str, Any]) -> Iterator[str]:
    """Yield sentences on the origin of the model."""
    if handle := meta.get("handle") or meta.get("id"):
        yield f"Model {quote(handle)} of the NLPL repository."
    if creators := _list_objects(meta, "creators"):
        yield f"Trained by {', '.join(quote(str(person.get('name'))) for person in creators)}."
    for corpus in _list_objects(meta, "corpus"):
        tokens, name = corpus.get("tokens"), str(corpus.get("description") or "not named")
        size = f" ({tokens:,} tokens)" if isinstance(tokens, int) else ""
        yield f"Corpus: {quote(name.rstrip('.'))}{size}."


def _list_languages(meta: dict[str, Any]) -> list[str]:
    """List the two-letter language codes of the corpora, as used by the Hub and spaCy."""
    names = {str(corpus.get("language")) for corpus in _list_objects(meta, "corpus")}
    if not names:
        return []
    from spacy.util import find_matching_language  # slow to import

    codes = {find_matching_language(NORWEGIAN.get(name, name)) for name in names}
    return sorted(filter(None, codes))
