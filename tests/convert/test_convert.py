"""The package's own names are enough to convert."""

from pathlib import Path

import pytest
from bilm_tf import make_bilm, write_bilm

import convert


def test_the_public_names_convert_and_tell_mistakes(tmp_path: Path) -> None:
    weights = write_bilm(tmp_path / "source", make_bilm())
    conversion = convert.convert_checkpoint(weights, tmp_path / "model")
    assert conversion.format in {known.name for known in convert.FORMATS}
    with pytest.raises(convert.ConversionError, match="is there already"):
        convert.convert_checkpoint(weights, tmp_path / "model")
