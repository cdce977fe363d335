"""A folder packed into bytes is read as the same files."""

from pathlib import Path

from spacy_elmo.component_parts import pack_folder, unpack_folder


def test_files_come_back_and_none_outside_their_folder() -> None:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "a.txt").write_bytes(b"one")
        (folder / "b.bin").write_bytes(b"\0two")

    seen: dict[str, bytes] = {}

    def read(folder: Path) -> None:
        seen.update({path.name: path.read_bytes() for path in folder.iterdir()})

    unpack_folder(pack_folder(write), read)
    assert seen == {"a.txt": b"one", "b.bin": b"\0two"}
