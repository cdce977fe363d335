"""Bring public task data into spaCy's format: `python make_docs.py DATA corpus`.

DATA is a folder with the files of `FILES`, as their authors publish them, packed with gzip or not:
UD English EWT (CoNLL-U); WNUT-17 and WikiGold (a word and its BIO tag a line); LitBank (two BIO
tags a line, of the outermost and the innermost entities); SST-5 (trees of the Penn Treebank); TREC
(`COARSE:fine question`). Each sentence becomes a doc of its own, with the words of the corpus.
"""

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import spacy
import typer
from spacy.tokens import Doc, DocBin, Span
from spacy.training import biluo_tags_to_spans, iob_to_biluo
from spacy.training.converters import conllu_to_docs
from spacy.vocab import Vocab

SPLITS = ("train", "dev", "test")
SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")
TREC_LABELS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


class Source(NamedTuple):
    """Where a task's files are, and how they are read."""

    path: str  # with {split}
    read: Callable[[str, Vocab], Iterator[Doc]]


def read_treebank(text: str, vocab: Vocab) -> Iterator[Doc]:
    for doc in conllu_to_docs(text, n_sents=1, no_print=True):
        doc.has_unknown_spaces = True  # so that training keeps the corpus's words
        yield doc


def read_entities(text: str, vocab: Vocab) -> Iterator[Doc]:
    """Read `word<TAB>tag` lines with an empty line after each sentence."""
    for doc, (spans,) in _read_tagged(text, vocab):
        doc.ents = spans
        yield doc


def read_spans(text: str, vocab: Vocab) -> Iterator[Doc]:
    """Read `word<TAB>tag<TAB>tag` lines; spans may lie within each other."""
    for doc, columns in _read_tagged(text, vocab):
        spans = {(span.start, span.end, span.label): span for column in columns for span in column}
        doc.spans["sc"] = [spans[key] for key in sorted(spans)]
        yield doc


def _read_tagged(text: str, vocab: Vocab) -> Iterator[tuple[Doc, list[list[Span]]]]:
    for block in re.split(r"\n\s*\n", text.strip()):
        rows = [line.split("\t") for line in block.split("\n")]
        words, *columns = zip(*rows, strict=True)
        doc = Doc(vocab, words=words)
        yield doc, [biluo_tags_to_spans(doc, iob_to_biluo(list(column))) for column in columns]


def read_trees(text: str, vocab: Vocab) -> Iterator[Doc]:
    for line in text.splitlines():
        words = [
            word.replace("-LRB-", "(").replace("-RRB-", ")").replace("\\/", "/")
            for word in re.findall(r"([^\s()]+)\)", line)
        ]
        yield _make_labelled(vocab, words, SENTIMENTS[int(line[1])], SENTIMENTS)


def read_questions(text: str, vocab: Vocab) -> Iterator[Doc]:
    for line in text.splitlines():
        label, *words = line.split()
        yield _make_labelled(vocab, words, label.split(":")[0], TREC_LABELS)


def _make_labelled(vocab: Vocab, words: list[str], label: str, labels: tuple[str, ...]) -> Doc:
    doc = Doc(vocab, words=words)
    doc.cats = {other: float(other == label) for other in labels}
    return doc


FILES = {
    "ewt": Source("ewt/en_ewt-ud-{split}.conllu", read_treebank),
    "wnut17": Source("ner/wnut17/{split}.conll", read_entities),
    "wikigold": Source("ner/wikigold/{split}.conll", read_entities),
    "litbank": Source("ner/litbank/{split}.conll", read_spans),
    "sst5": Source("sst5/{split}.txt", read_trees),
    "trec": Source("trec/{split}.txt", read_questions),
}


def read_split(data: Path, task: str, split: str, vocab: Vocab) -> list[Doc]:
    """Read a split; of a corpus without a development set, every tenth training doc is that."""
    source = FILES[task]
    has_dev = _find(data, source.path.format(split="dev")) is not None
    name = "train" if split == "dev" and not has_dev else split
    path = _find(data, source.path.format(split=name))
    if path is None:
        raise typer.BadParameter(
            f"No file {source.path.format(split=name)}, nor with .gz, in {data}."
        )
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        docs = list(source.read(file.read(), vocab))
    if has_dev or split == "test":
        return docs
    return [doc for number, doc in enumerate(docs) if (number % 10 == 0) == (split == "dev")]


def _find(data: Path, path: str) -> Path | None:
    return next((found for end in ("", ".gz") if (found := data / (path + end)).is_file()), None)


def main(
    data: Annotated[Path, typer.Argument(help="Folder of the public files.")],
    corpus: Annotated[Path, typer.Argument(help="Folder to write: TASK/SPLIT.spacy.")],
    tasks: Annotated[str, typer.Option(help="Only these.")] = ",".join(FILES),
) -> None:
    """Bring public task data into spaCy's format."""
    vocab = spacy.blank("en").vocab
    for task in tasks.split(","):
        (corpus / task).mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            docs = read_split(data, task, split, vocab)
            DocBin(docs=docs, store_user_data=True).to_disk(corpus / task / f"{split}.spacy")
            print(f"{task} {split}: {len(docs):,} docs, {sum(map(len, docs)):,} words")


if __name__ == "__main__":
    typer.run(main)
