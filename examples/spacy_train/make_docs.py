"""Convert public task data to spaCy's format: `python make_docs.py DATA corpus`.

DATA is a folder with the files of `FILES` as their authors publish them, compressed with gzip or
not: UD English EWT (CoNLL-U); WNUT-17 and WikiGold (a word and its BIO tag per line); LitBank (a
word and two BIO tags per line, for outermost and innermost entities); SST-5 (trees of the Penn
Treebank); TREC (`COARSE:fine question`). Each sentence becomes a doc with the words of the corpus.
In `ewt10`, ten sentences become a doc, so that a parser can learn sentence boundaries.
For your own files in these formats: `--task mine:entities:train.conll:dev.conll:test.conll`.
"""

import gzip
import re
from collections.abc import Callable, Iterator
from functools import partial
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
    """Paths of a task's splits, and the function that reads a file."""

    paths: tuple[str, ...]
    read: Callable[[str, Vocab], Iterator[Doc]]


def read_treebank(text: str, vocab: Vocab, num_sentences: int = 1) -> Iterator[Doc]:
    for doc in conllu_to_docs(text, n_sents=num_sentences, no_print=True):
        doc.has_unknown_spaces = True  # so that training keeps the corpus's words
        yield doc


def read_entities(text: str, vocab: Vocab) -> Iterator[Doc]:
    """Read `word<TAB>tag` lines with an empty line after each sentence."""
    for doc, (spans,) in _read_tagged(text, vocab):
        doc.ents = spans
        yield doc


def read_spans(text: str, vocab: Vocab) -> Iterator[Doc]:
    """Read `word<TAB>tag<TAB>tag` lines; spans can be nested."""
    for doc, columns in _read_tagged(text, vocab):
        spans = {(span.start, span.end, span.label): span for column in columns for span in column}
        doc.spans["sc"] = [spans[key] for key in sorted(spans)]
        yield doc


def _read_tagged(text: str, vocab: Vocab) -> Iterator[tuple[Doc, list[list[Span]]]]:
    for block in re.split(r"\n\s*\n", text.strip()):
        rows = [line.split("\t") for line in block.split("\n")]
        if rows[0][0] == "-DOCSTART-":  # marks the start of a document
            continue
        words, *columns = zip(*rows, strict=True)
        doc = Doc(vocab, words=words)
        yield doc, [biluo_tags_to_spans(doc, iob_to_biluo(list(column))) for column in columns]


def read_trees(text: str, vocab: Vocab) -> Iterator[Doc]:
    for line in text.strip().split("\n"):
        words = [
            word.replace("-LRB-", "(").replace("-RRB-", ")").replace("\\/", "/")
            for word in re.findall(r"([^\s()]+)\)", line)
        ]
        yield _make_labelled(vocab, words, SENTIMENTS[int(line[1])], SENTIMENTS)


def read_questions(text: str, vocab: Vocab) -> Iterator[Doc]:
    for line in text.strip().split("\n"):
        label, *words = line.split()
        yield _make_labelled(vocab, words, label.split(":")[0], TREC_LABELS)


def read_labelled(text: str, vocab: Vocab) -> Iterator[Doc]:
    """Read lines with a label and the words of a sentence, separated by spaces."""
    # Not str.splitlines, which also splits at characters such as U+2028.
    rows = [line.split() for line in text.split("\n") if line.strip()]
    labels = tuple(sorted({label for label, *_ in rows}))
    if alone := [row[0] for row in rows if len(row) == 1]:
        raise typer.BadParameter(f"Expected a label and words in each line, got {alone[0]!r}.")
    for label, *words in rows:
        yield _make_labelled(vocab, words, label, labels)


def _make_labelled(vocab: Vocab, words: list[str], label: str, labels: tuple[str, ...]) -> Doc:
    doc = Doc(vocab, words=words)
    doc.cats = {other: float(other == label) for other in labels}
    return doc


def _source(path: str, read: Callable[[str, Vocab], Iterator[Doc]]) -> Source:
    return Source(tuple(path.format(split) for split in SPLITS), read)


FILES = {
    "ewt": _source("ewt/en_ewt-ud-{}.conllu", read_treebank),
    "ewt10": _source("ewt/en_ewt-ud-{}.conllu", partial(read_treebank, num_sentences=10)),
    "wnut17": _source("ner/wnut17/{}.conll", read_entities),
    "wikigold": _source("ner/wikigold/{}.conll", read_entities),
    "litbank": _source("ner/litbank/{}.conll", read_spans),
    "sst5": _source("sst5/{}.txt", read_trees),
    "trec": Source(("trec/train.txt", "", "trec/test.txt"), read_questions),
}
FORMATS = {
    "treebank": read_treebank,
    "entities": read_entities,
    "spans": read_spans,
    "labelled": read_labelled,
}
DATA_HELP = (
    "Folder of the files, compressed with gzip or not. Training files (dev and test alike): "
    + (", ".join(f"{source.paths[0]} ({task})" for task, source in FILES.items()))
)
TASK_HELP = (
    "Your own files: NAME:FORMAT:TRAIN:DEV:TEST, with paths relative to DATA; repeatable. "
    "Formats: treebank (CoNLL-U), entities (a word, a tab and its BIO tag per line, an empty line "
    "after each sentence), spans (likewise, with several tags), labelled (a label and a sentence "
    "per line, separated by spaces). If DEV is empty, every tenth training doc is used."
)

JOINED_HELP = (
    "Write JOINED/SPLIT/TASK.spacy instead: one corpus for a pipeline that learns all tasks. "
    "Annotations that a task lacks are unknown."
)


def parse_source(task: str) -> tuple[str, Source]:
    """Read a setting `NAME:FORMAT:TRAIN:DEV:TEST`."""
    name, kind, *paths = task.split(":")
    if len(paths) != len(SPLITS) or kind not in FORMATS:
        raise typer.BadParameter(
            f"Expected NAME:FORMAT:TRAIN:DEV:TEST, FORMAT one of {', '.join(FORMATS)}, got {task}."
        )
    return name, Source(tuple(paths), FORMATS[kind])


def read_split(data: Path, source: Source, split: str, vocab: Vocab) -> list[Doc]:
    """Read a split; without a development file, every tenth training doc is in that split."""
    paths = dict(zip(SPLITS, source.paths, strict=True))
    has_dev = bool(paths["dev"])
    name = "train" if split == "dev" and not has_dev else split
    path = _find(data, paths[name])
    if path is None:
        raise typer.BadParameter(f"No file {paths[name]}, nor with .gz, in {data}.")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        docs = list(source.read(file.read(), vocab))
    if has_dev or split == "test":
        return docs
    return [doc for number, doc in enumerate(docs) if (number % 10 == 0) == (split == "dev")]


def _find(data: Path, path: str) -> Path | None:
    return next((found for end in ("", ".gz") if (found := data / (path + end)).is_file()), None)


def choose_sources(tasks: str | None, own: list[str]) -> dict[str, Source]:
    """Choose the public tasks that are named, all if there is nothing else, and one's own."""
    names = tasks.split(",") if tasks else [] if own else list(FILES)
    unknown = ", ".join(set(names) - FILES.keys())
    if unknown:
        raise typer.BadParameter(f"Expected tasks of {', '.join(FILES)}, got {unknown}.")
    return {name: FILES[name] for name in names} | dict(map(parse_source, own))


def main(
    data: Annotated[Path, typer.Argument(help=DATA_HELP)],
    corpus: Annotated[Path, typer.Argument(help="Folder to write: TASK/SPLIT.spacy.")],
    tasks: Annotated[str | None, typer.Option(help="Only these tasks, with commas.")] = None,
    task: Annotated[list[str] | None, typer.Option(help=TASK_HELP)] = None,
    joined: Annotated[str | None, typer.Option(help=JOINED_HELP)] = None,
) -> None:
    """Convert task data to spaCy's format: public files or your own."""
    vocab = spacy.blank("en").vocab
    for name, source in choose_sources(tasks, task or []).items():
        for split in SPLITS:
            docs = read_split(data, source, split, vocab)
            path = corpus / (f"{joined}/{split}/{name}" if joined else f"{name}/{split}")
            path.parent.mkdir(parents=True, exist_ok=True)
            DocBin(docs=docs, store_user_data=True).to_disk(path.with_suffix(".spacy"))
            print(f"{name} {split}: {len(docs):,} docs, {sum(map(len, docs)):,} words")


if __name__ == "__main__":
    typer.run(main)
