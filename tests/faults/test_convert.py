"""What is killed at any change of files is finished by the same command: conversion, download."""

import signal
from functools import partial
from pathlib import Path

import pytest
from bilm_tf import make_bilm, write_bilm
from faulty_run import run
from file_server import download_into, run_file_server

from convert import ConversionError, convert_checkpoint

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("force", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize(
    ("to", "name"),
    [("huggingface", "model"), ("bilm-hdf5", "x_weights.hdf5"), ("allennlp", "elmo.th")],
)
def test_a_killed_conversion_is_finished_by_the_same_command(
    to: str, name: str, force: bool, tmp_path: Path
) -> None:
    source = write_bilm(tmp_path / "source", make_bilm(cell_clip=3, proj_clip=3, max_characters=50))
    (tmp_path / "whole").mkdir()
    convert_checkpoint(source, tmp_path / "whole" / name, to=to)
    expected, number, exit_code = read_files(tmp_path / "whole"), 0, None
    while exit_code != 0:
        number += 1
        place = tmp_path / f"place{number}"
        place.mkdir()
        target = place / name
        if force:
            convert_checkpoint(source, target, to=to)
        convert = partial(convert_checkpoint, source, target, to=to, force=force)
        exit_code, _ = run(convert, place, "kill", number)
        assert exit_code in (0, -signal.SIGKILL)
        if exit_code and target.exists() and not force:  # complete: it is moved last
            with pytest.raises(ConversionError, match="is there already"):
                convert()
        elif exit_code:
            convert()
        assert read_files(place) == expected, f"killed before change {number}"
    assert number > 6


def test_a_killed_download_is_finished_by_the_same_command(tmp_path: Path) -> None:
    data, number, exit_code = bytes(range(256)) * 100, 0, None
    while exit_code != 0:
        number += 1
        cache = tmp_path / f"cache{number}"
        cache.mkdir()
        with run_file_server() as server:
            address = server.put("/weights.hdf5", data)
            exit_code, _ = run(partial(download_into, cache, address), cache, "kill", number)
            assert exit_code in (0, -signal.SIGKILL)
            download_into(cache, address)
            download_into(cache, address)
            assert len(server.requests) <= 2
        (path,) = cache.rglob("weights.hdf5")
        assert path.read_bytes() == data, f"killed before change {number}"
    assert number > 6
