"""Read bilm-tf's vocabularies: one word per line, in the order of the table."""

from pathlib import Path

from convert.layout import ConversionError

SKIPPED_LINE = "!!!MAXTERMID"  # bilm/data.py, Vocabulary: this line is not a word


def read_vocabulary(path: Path, num_rows: int, rows_of: str) -> tuple[str, ...]:
    """Read a vocabulary like bilm-tf: one word per line, without surrounding whitespace.

    Args:
        path: The file.
        num_rows: Expected number of words.
        rows_of: Name of the table with these rows, for messages.

    Raises:
        ConversionError: If the file is not UTF-8 or has another number of words.
    """
    try:
        with path.open(encoding="utf-8") as file:
            words = tuple(word for word in map(str.strip, file) if word != SKIPPED_LINE)
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{path}: expected UTF-8 with one word per line, got {error}."
        ) from error
    if len(words) != num_rows:
        raise ConversionError(
            f"{path}: expected {num_rows} words, one per row of {rows_of}, got {len(words)}."
        )
    return words
