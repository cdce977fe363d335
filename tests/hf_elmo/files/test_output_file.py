"""Places of files that a command is to write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_elmo.files.output_file import check_output_file, replace, write_file


def test_a_new_file_and_a_device_can_be_written(tmp_path: Path) -> None:
    check_output_file(tmp_path / "new.txt")
    check_output_file(Path("/dev/null"))


def test_a_file_that_exists_is_refused_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "old.txt").touch()
    with pytest.raises(FileExistsError, match=r"Expected a new file, got .*old.txt, which exists"):
        check_output_file(tmp_path / "old.txt")
    check_output_file(tmp_path / "old.txt", overwrite=True)


@pytest.mark.parametrize("link", ["data.txt", "hard.txt", "soft.txt"])
def test_the_input_is_never_overwritten(link: str, tmp_path: Path) -> None:
    source = tmp_path / "data.txt"
    source.touch()
    (tmp_path / "hard.txt").hardlink_to(source)
    (tmp_path / "soft.txt").symlink_to(source)
    with pytest.raises(FileExistsError, match="Expected an output other than the input"):
        check_output_file(tmp_path / link, ["no-file.txt", source], overwrite=True)


def test_a_folder_that_is_missing_or_the_output_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Expected a folder .*missing for found"):
        check_output_file(tmp_path / "missing" / "found.jsonl")
    with pytest.raises(IsADirectoryError, match="Expected a file to write, got the folder"):
        check_output_file(tmp_path, overwrite=True)


def test_a_folder_that_cannot_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(PermissionError, match="Expected a folder that can be written to"):
        check_output_file(tmp_path / "new.txt")


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_text("old")

    def fail() -> None:
        with replace(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_a_link_is_written_through_and_a_device_directly(tmp_path: Path) -> None:
    (tmp_path / "file.txt").touch()
    (tmp_path / "link.txt").symlink_to(tmp_path / "file.txt")
    write_file(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "file.txt").read_text() == "new"
    write_file(Path("/dev/null"), "nothing")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_a_redirected_output_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    path.write_text("earlier\n")
    with path.open("a") as file:
        output = Path(f"/dev/fd/{file.fileno()}")
        check_output_file(output)
        write_file(output, "new\n")
    assert path.read_text() == "earlier\nnew\n"


def test_characters_that_are_not_unicode_can_be_escaped(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", ['"\ud83d"\n'], errors="backslashreplace")
    assert (tmp_path / "a.jsonl").read_text() == '"\\ud83d"\n'


@pytest.mark.parametrize("name", ["words.txt.gz", "words.XZ"])
def test_plain_text_under_the_name_of_a_compressed_file_is_refused(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="would be plain text"):
        check_output_file(tmp_path / name)


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_else_is_written_to_a_redirected_stream_is_kept(place: str, tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from hf_elmo.files.output_file import write_file; "
        f"os.write(1, b'before\\n'); write_file(Path('{place}'), 'text\\n'); "
        "os.write(1, b'after\\n')"
    )
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", code], check=True, stdout=log)
        os.write(log.fileno(), b"later\n")
    assert (tmp_path / "log").read_text() == "before\ntext\nafter\nlater\n"
