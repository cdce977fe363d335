"""What is killed at any change of files is finished by the same command: conversion, download."""

from pathlib import Path

import pytest
from bilm_tf import make_bilm, write_bilm
from file_server import download_into, run_file_server
from killed_process import run_until_change

from convert import ConversionError, convert_checkpoint

pytestmark = pytest.mark.faults


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
    expected, number, is_over = read_files(tmp_path / "whole"), 0, False
    while not is_over:
        place = tmp_path / f"place{number}"
        place.mkdir()
        target = place / name
        if force:
            convert_checkpoint(source, target, to=to)
        is_over = run_until_change(
            number, place, convert_checkpoint, source, target, to=to, force=force
        )
        if not is_over and target.exists() and not force:  # complete: it is moved last
            with pytest.raises(ConversionError, match="is there already"):
                convert_checkpoint(source, target, to=to)
        elif not is_over:
            convert_checkpoint(source, target, to=to, force=force)
        assert read_files(place) == expected, f"killed before change {number}"
        number += 1
    assert number > 5


def test_a_killed_download_is_finished_by_the_same_command(tmp_path: Path) -> None:
    data, number, is_over = bytes(range(256)) * 100, 0, False
    while not is_over:
        cache = tmp_path / f"cache{number}"
        cache.mkdir()
        with run_file_server() as server:
            address = server.put("/weights.hdf5", data)
            is_over = run_until_change(number, cache, download_into, cache, address)
            download_into(cache, address)
            download_into(cache, address)
            assert len(server.requests) <= 2
        (path,) = cache.rglob("weights.hdf5")
        assert path.read_bytes() == data, f"killed before change {number}"
        number += 1
    assert number > 5
