"""Components that are saved as folders, or as bytes that hold the same files."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import srsly
from spacy import util


class Part(NamedTuple):
    """Functions that write and read a part of a component in a folder."""

    write: Callable[[Path], None]
    read: Callable[[Path], Any]


class SavedComponent:
    """Component that saves each of its parts under the part's name, such as `model/`."""

    def list_parts(self, exclude: Iterable[str]) -> dict[str, Part]:
        """Return the parts by name; `exclude` can also name parts of the vocab."""
        raise NotImplementedError

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Write the component to a folder, without the parts in `exclude`."""
        parts = self.list_parts(exclude).items()
        util.to_disk(path, {name: part.write for name, part in parts}, exclude)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> Self:
        """Read a folder of `to_disk`; the model's name in the configuration is only a fallback.

        Raises:
            OSError: If the folder holds no model.
            ValueError: If the weights do not fit their configuration.
        """
        parts = self.list_parts(exclude).items()
        util.from_disk(path, {name: part.read for name, part in parts}, exclude)
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Return the files of `to_disk` as bytes."""
        parts = self.list_parts(exclude).items()
        getters: dict[str, Callable[[], bytes]] = {
            name: partial(pack_folder, part.write) for name, part in parts
        }
        return util.to_bytes(getters, exclude)

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Self:
        """Read the bytes of `to_bytes`."""
        parts = self.list_parts(exclude).items()
        setters: dict[str, Callable[[bytes], Any]] = {
            name: partial(unpack_folder, read=part.read) for name, part in parts
        }
        util.from_bytes(bytes_data, setters, exclude)
        return self


def pack_folder(write: Callable[[Path], None]) -> bytes:
    """Let a function write files to a new folder, and return them packed as bytes."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write(folder)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    packed: bytes = srsly.msgpack_dumps(files)
    return packed


def unpack_folder(data: bytes, read: Callable[[Path], Any]) -> None:
    """Unpack the bytes of `pack_folder` to a folder, and let a function read this folder."""
    # On Windows, weights that are mapped into memory cannot be deleted yet.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, content in srsly.msgpack_loads(data).items():
            (Path(folder) / Path(name).name).write_bytes(content)
        read(Path(folder))
