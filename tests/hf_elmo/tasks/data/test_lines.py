from pathlib import Path

import pytest

from hf_elmo.tasks.data.lines import read_lines


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"a\tO\n\xff\tO\n")
    with pytest.raises(ValueError, match=r"Expected UTF-8 in .* line 2"):
        list(read_lines(path))
