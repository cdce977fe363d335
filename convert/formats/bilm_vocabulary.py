"""bilm-tf's vocabularies: a word a line, in the order of a word table or softmax."""

from pathlib import Path

from convert.layout import ConversionError

SKIPPED_LINE = "!!!MAXTERMID"  # bilm/data.py, Vocabulary: a line that is no word


def read_vocabulary(path: Path, num_rows: int, rows_of: str) -> tuple[str, ...]:
    """Read a vocabulary as bilm-tf does: a word a line, stripped of white space.

    Args:
        path: The file.
        num_rows: Number of words that it must have.
        rows_of: What has that many rows, for messages.

    Raises:
        ConversionError: If the file is not UTF-8, or has another number of words.
    """
    try:
        with path.open(encoding="utf-8") as file:
            words = tuple(word for word in map(str.strip, file) if word != SKIPPED_LINE)
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path}: expected UTF-8, a word a line, got {error}.") from error
    if len(words) != num_rows:
        raise ConversionError(
            f"{path}: expected {num_rows} words, the rows of {rows_of}, got {len(words)}."
        )
    return words
