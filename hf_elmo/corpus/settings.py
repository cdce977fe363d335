"""What decides the contents of an output: its input, what is computed of it, and its share."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hf_elmo.inference.embedding import MAX_BATCH_TOKENS, Layers, Pooling
from hf_elmo.text.text_reader import InputFormat

OutputDtype: TypeAlias = Literal["float32", "float16"]

VECTORS_COLUMN = "vectors"  # of a parquet output


@dataclass(frozen=True)
class Settings:
    """What decides the contents of an output: an interrupted run goes on with the same only.

    Attributes:
        model: Name of the model.
        input_format: Of files other than parquet. `"text"`: one tokenised sentence a line, words
            between white space; `"raw"`: text for spaCy to cut; `"conllu"`: CoNLL-U.
        pipeline: spaCy language or pipeline that cuts raw text.
        text_column: Column of a parquet file with a sentence a row: a list of words, or words
            between white space.
        id_column: Column of a parquet file that names its rows; None = they are numbered.
        layers: As for `embed_pieces`.
        pooling: As for `embed_pieces`.
        dtype: Of the vectors in the output.
        max_batch_tokens: As for `embed_pieces`.
        shard: Which share of the sentences: `"2/3"` is the second of three.

    Raises:
        ValueError: If there is no such shard, or the ids' column has the name of the vectors'.
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
        """Number of the share, from 1."""
        return int(self.shard.partition("/")[0])

    @property
    def num_shards(self) -> int:
        """How many shares there are."""
        return int(self.shard.partition("/")[2])
