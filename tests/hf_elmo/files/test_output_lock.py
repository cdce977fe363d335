"""Outputs that one process at a time may write."""

import multiprocessing
from pathlib import Path

import pytest
from lock_holder import hold
from typer.testing import CliRunner

from hf_elmo.__main__ import app
from hf_elmo.files.output_lock import get_rank, lock_output


def test_a_refused_command_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_output(tmp_path / "new", tmp_path / "new" / ".lock"):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_lock_that_only_its_release_can_delete_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(f"{path} is open.")  # as on Windows

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(KeyError):  # noqa: PT012
            patch.setattr(Path, "unlink", refuse)
            with lock_output(tmp_path / "file", tmp_path / ".lock"):
                raise KeyError


def test_a_link_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    (tmp_path / ".lock").symlink_to("thesis.txt")
    with (
        pytest.raises(FileExistsError, match="Expected no link as lock"),
        lock_output(tmp_path / "file", tmp_path / ".lock"),
    ):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "x"


@pytest.mark.slow
def test_two_processes_do_not_write_one_output(tiny_folder: Path, tmp_path: Path) -> None:
    folder, file, text = tmp_path / "out", tmp_path / "vectors.npz", tmp_path / "text.conll"
    text.write_text("The\tO\nbank\tB-A\n\n" * 8)
    context = multiprocessing.get_context("spawn")
    are_held, are_free = context.Event(), context.Event()
    process = context.Process(target=hold, args=(folder, file, are_held, are_free))
    process.start()
    assert are_held.wait(60)
    for output, arguments in [
        (file, ["embed", text, file, "--model", tiny_folder]),
        (folder, ["pretrain", "--train", text, "--output", folder]),
        (folder, ["train", "ner", "--train", text, "--dev", text, "--output", folder]),
    ]:
        result = CliRunner().invoke(app, list(map(str, arguments)))
        assert result.exit_code == 1
        assert f"Error: Another process is writing {output}: wait for it" in result.output
    are_free.set()
    process.join(60)
    assert process.exitcode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.conll", "tiny-elmo"]


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # as root, every folder can be
    with (
        pytest.raises(PermissionError, match="Expected a folder that can be written to, got "),
        lock_output(tmp_path / "out", tmp_path / ".lock"),
    ):
        pass


def test_a_link_to_a_folder_that_does_not_exist_yet_is_locked(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("folder")
    with lock_output(tmp_path / "link", tmp_path / "link" / ".lock"):
        (tmp_path / "link" / "file").touch()
    assert (tmp_path / "folder" / "file").exists()


def test_an_output_is_free_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), lock_output(tmp_path, tmp_path / ".lock"):
            raise KeyError
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize(("value", "rank"), [("3", 3), ("", 0), ("first", 0)])
def test_a_rank_that_is_no_number_is_that_of_a_single_process(
    value: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", value)
    assert get_rank() == rank


def test_processes_of_one_torchrun_share_an_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lock_output(tmp_path, tmp_path / ".lock", is_shared=True):
        monkeypatch.setenv("RANK", "1")
        with lock_output(tmp_path, tmp_path / ".lock", is_shared=True):
            assert (tmp_path / ".lock").exists()
        with pytest.raises(BlockingIOError), lock_output(tmp_path, tmp_path / ".lock"):
            pass  # as in `embed`: each process writes an output of its own
        assert (tmp_path / ".lock").exists()
        monkeypatch.delenv("RANK")
