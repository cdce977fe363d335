"""Settings that determine the output."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hf_elmo.inference.embedding import MAX_BATCH_TOKENS, Layers, Pooling
from hf_elmo.text.text_reader import InputFormat

OutputDtype: TypeAlias = Literal["float32", "float16"]

VECTORS_COLUMN = "vectors"  # column of a parquet output


@dataclass(frozen=True)
class Settings:
    """Settings that determine the output; a run resumes only with the same.

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
        shard: Share of the sentences: `"2/3"` is the second of three.

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
        is_shard = re.fullmatch(r"\d+/\d+", self.shard)
        if not is_shard or not 1 <= self.shard_number <= self.num_shards:
            raise ValueError(
                f"Expected a shard such as 1/3, 2/3 or 3/3, the number of a share and how many "
                f"there are, got {self.shard!r}."
            )

    @property
    def shard_number(self) -> int:
        """Number of the shard, from 1."""
        return int(self.shard.partition("/")[0])

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return int(self.shard.partition("/")[2])
