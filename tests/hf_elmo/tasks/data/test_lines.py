from pathlib import Path

import pytest
from task_files import write

from hf_elmo.tasks.data.lines import group_rows, read_lines, read_records


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"a\tO\n\xff\tO\n")
    with pytest.raises(ValueError, match=r"Expected UTF-8 in .* line 2"):
        list(read_lines(path))


def test_lines_of_windows_end_without_a_carriage_return(tmp_path: Path) -> None:
    path = write(tmp_path, "a\tO\r\nb\tO \r\n")
    assert list(read_lines(path)) == [(1, "a\tO"), (2, "b\tO ")]


def test_a_line_of_white_space_is_blank(tmp_path: Path) -> None:
    path = write(tmp_path, "a O\n \t\n# note\nb O\n")
    assert list(read_records(path)) == [(1, "a O"), (3, "# note"), (4, "b O")]
    assert list(group_rows(path, "#")) == [[(1, "a O")], [(4, "b O")]]
