"""A folder of a saved model as bytes, for `nlp.to_bytes` and for pickles."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import srsly


def pack_folder(write: Callable[[Path], None]) -> bytes:
    """Put the files that a function writes to a folder, which it makes, into bytes."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write(folder)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return cast(bytes, srsly.msgpack_dumps(files))


def unpack_folder(data: bytes, read: Callable[[Path], None]) -> None:
    """Let a function read the folder that `pack_folder` has put into bytes."""
    with TemporaryDirectory() as folder:
        for name, content in srsly.msgpack_loads(data).items():
            (Path(folder) / Path(name).name).write_bytes(content)
        read(Path(folder))
