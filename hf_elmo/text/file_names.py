"""Names of text files: those of datasets are refused."""

import re
from collections.abc import Iterable

DATASET_SUFFIXES = (".json", ".jsonl", ".parquet", ".arrow")


def check_text_names(names: Iterable[str]) -> None:
    """Refuse files with names of datasets, which would be read as lines of text.

    Raises:
        ValueError: If a name is that of a dataset, also of a compressed one.
    """
    for name in names:
        if re.sub(r"\.(gz|bz2|xz|zst)$", "", name.lower()).endswith(DATASET_SUFFIXES):
            raise ValueError(
                f"Expected text, got {name}. Its name is that of a dataset. Write its text to a "
                "file, one sentence per line. Only pretrain --dataset reads such files, and embed "
                "reads parquet."
            )
