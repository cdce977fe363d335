"""Settings of a run, and rows of a corpus: numbered sentences of files or of a stream."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeAlias

from hf_elmo.inference.batches import MAX_BATCH_TOKENS
from hf_elmo.inference.embedding import Layers, Pooling
from hf_elmo.text.text_files import (
    check_text_names,
    decompress,
    find_files,
    measure_file,
    open_file,
)
from hf_elmo.text.text_reader import InputFormat, read_sentences

from .arrow import read_parquet
from .shards import Shard

OutputDtype: TypeAlias = Literal["float32", "float16"]

VECTORS_COLUMN = "vectors"  # column of a parquet output


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


@dataclass(frozen=True)
class Settings:
    """Settings that determine the output; a run resumes only with the same settings.

    Attributes:
        model: Name of the model.
        input_format: Format of files other than parquet. `"text"`: one tokenised sentence per line,
            words separated by whitespace; `"raw"`: raw text for spaCy; `"conllu"`: CoNLL-U.
        pipeline: spaCy language or pipeline for raw text.
        text_column: Parquet column with one sentence per row: a list of words, or words separated
            by whitespace.
        id_column: Parquet column with ids; None = rows are numbered.
        layers: As for `embed_pieces`.
        pooling: As for `embed_pieces`.
        dtype: Data type of the output.
        max_batch_tokens: As for `embed_pieces`.
        shard: Share of the sentences: `"2/3"` is the second of three shares.

    Raises:
        ValueError: If the shard is invalid, or the id column has the name of the vector column.
    """

    model: str = ""
    input_format: InputFormat = "text"
    pipeline: str = "en"
    text_column: str = "text"
    id_column: str | None = None
    layers: Layers = "all"
    pooling: Pooling = "none"
    dtype: OutputDtype = "float32"
    max_batch_tokens: int = MAX_BATCH_TOKENS
    shard: str = "1/1"

    def __post_init__(self) -> None:
        if self.id_column == VECTORS_COLUMN:
            raise ValueError(
                f"Expected another id column than {VECTORS_COLUMN!r}, in which the vectors are "
                "written: rename it."
            )
        Shard.parse(self.shard)


class Row(NamedTuple):
    """Sentence of a corpus.

    Attributes:
        number: Index of the sentence in the files that `Rows` reads, from 0.
        words: Words of the sentence.
        id: Id in the corpus, or None.
    """

    number: int
    words: list[str]
    id: int | str | None = None


def _find_outputs(files: Sequence[str], output: Path, shard: Shard) -> list[str]:
    """Find the files that shards with this output write; a single output is checked elsewhere."""
    outputs = [path.name for path in shard.list_outputs(output)]
    names = {f"{name}{ending}" for name in outputs for ending in (".partial", ".finished")}
    names.update(outputs if shard.total > 1 else ())
    folder = output.parent.resolve()
    return [
        file
        for file in files
        if any(
            path.name in names and path.parent.resolve() == folder
            for path in (Path(file), *Path(file).parents)
        )
    ]


class Rows:
    """Rows of a corpus in order; they can be read repeatedly, except from a stream.

    With an id column and at least one file per shard, a shard reads only its own files
    (`shares_files`). Otherwise it reads all files, because the number of a sentence counts all
    sentences before it.

    Attributes:
        position: Number of bytes that have been read.
        num_bytes: Size of all files that are read; None = a stream.
        left_out: Outputs that the pattern matches. They are not read.

    Args:
        source: File, pattern such as `text/*.gz`, address such as `s3://bucket/*.parquet`, or
            binary stream of text.
        settings: Settings of the input.
        output: Output of this shard. Outputs of all shards and their folders for parts are left
            out, by name: otherwise each finished shard would change the input of the next one.
            None = nothing is left out.

    Raises:
        FileNotFoundError: If there is no such file, apart from outputs.
        ValueError: If a column is named, but the input is not parquet; or if the input is parquet,
            but its format is not text.
    """

    digest: "hashlib._Hash"  # of the rows that the last iteration has read

    def __init__(
        self, source: str | Path | BinaryIO, settings: Settings, output: Path | None = None
    ) -> None:
        self.settings = settings
        self.stream = None if isinstance(source, str | Path) else source
        self.files = find_files(str(source)) if self.stream is None else []
        self.shard = Shard.parse(settings.shard)
        self.left_out = [] if output is None else _find_outputs(self.files, output, self.shard)
        if self.left_out:
            outputs = set(self.left_out)
            self.files = [name for name in self.files if name not in outputs]
            listed = self.left_out[0] + ", ..." * (len(outputs) > 1)
            if not self.files:
                raise FileNotFoundError(
                    f"Expected files to read, found only outputs of this command at {source}: "
                    f"{listed}. Choose another output."
                )
            warnings.warn(f"Not reading outputs of this command: {listed}", stacklevel=2)
        self.shares_files = (
            settings.id_column is not None and len(self.files) >= self.shard.total > 1
        )
        if self.shares_files:
            self.files = list(self.shard.take(self.files))
        self.num_bytes = sum(map(measure_file, self.files)) if self.stream is None else None
        self.position = 0
        for name in self.files or ["the input"]:
            if _is_parquet(name):
                if settings.input_format != "text":
                    raise ValueError(
                        f"Expected text files with --input-format {settings.input_format}, got "
                        f"{name}. Words of parquet are lists, or are separated by blanks."
                    )
                continue
            if settings.id_column is not None:
                raise ValueError(f"Expected parquet files with an id column, got {name}.")
            if settings.text_column != Settings.text_column:
                raise ValueError(
                    f"Expected parquet files with the column {settings.text_column!r}, got {name}."
                )
            if settings.input_format == "text":
                check_text_names([name])

    def __iter__(self) -> Iterator[Row]:
        """Read the rows.

        Raises:
            ValueError: If a file does not have the expected format.
            OSError: If a file cannot be read.
        """
        self.position = 0
        self.digest = hashlib.sha256()
        for number, (words, name) in enumerate(self._read()):
            self.digest.update(json.dumps([words, name]).encode())
            yield Row(number, words, name)

    def _read(self) -> Iterator[tuple[list[str], int | str | None]]:
        if self.stream is not None:
            yield from self._read_file(self.stream, "the input")
        kind: type | None = None
        for file in self.files:
            start, size = self.position, measure_file(file)
            with open_file(file) as stream:
                for row in self._read_file(stream, file):
                    kind = kind or type(row[1])
                    if type(row[1]) is not kind:
                        raise ValueError(
                            f"Expected ids of one type in all files, {kind.__name__} as in "
                            f"{self.files[0]}, got {row[1]!r} in {file}."
                        )
                    self.position = start + min(stream.tell(), size)
                    yield row
            self.position = start + size

    def _read_file(
        self, stream: BinaryIO, file: str
    ) -> Iterator[tuple[list[str], int | str | None]]:
        settings = self.settings
        if _is_parquet(file):
            return read_parquet(stream, file, settings.text_column, settings.id_column)
        text = decompress(stream, file)
        sentences = read_sentences(text, settings.input_format, settings.pipeline, file)
        return ((words, None) for words in sentences)
