"""Archives are unpacked into their folder or not at all, within bounds."""

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import random
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from bilm_tf import make_bilm, write_bilm
from hypothesis import given, settings
from hypothesis import strategies as st

from convert import ConversionError, convert_checkpoint
from convert import unpack as unpack_module
from convert.unpack import is_archive, link, unpack

FILES = {"a.txt": b"one", "folder/b.bin": bytes(range(256)) * 9}


def write_zip(path: Path, files: dict[str, bytes] = FILES, compression: int = 8) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def write_tar(path: Path, files: dict[str, bytes] = FILES, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as file:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


ARCHIVES: dict[str, Callable[[Path], Path]] = {
    "zip": write_zip,
    "stored zip": lambda path: write_zip(path, compression=0),
    "bzip2 zip": lambda path: write_zip(path, compression=12),
    "tar": lambda path: write_tar(path, mode="w"),
    "tar.gz": write_tar,
    "tar.bz2": lambda path: write_tar(path, mode="w:bz2"),
    "tar.xz": lambda path: write_tar(path, mode="w:xz"),
}


@pytest.fixture(params=ARCHIVES.values(), ids=ARCHIVES.keys())
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An archive of each kind, under a name that does not tell."""
    write: Callable[[Path], Path] = request.param
    return write(tmp_path / "packed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "inside/folder"
    folder.mkdir(parents=True)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_archives_are_told_by_content_and_unpacked(packed: Path, folder: Path) -> None:
    assert is_archive(packed)
    unpack(packed, folder)
    assert read_files(folder) == FILES


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_lose_their_ending(
    compress: Callable[[bytes], bytes], tmp_path: Path, folder: Path
) -> None:
    path = tmp_path / "weights.hdf5.packed"
    path.write_bytes(compress(FILES["folder/b.bin"]))
    assert is_archive(path)
    unpack(path, folder)
    assert read_files(folder) == {"weights.hdf5": FILES["folder/b.bin"]}


@pytest.mark.parametrize("data", [b"", b"text", bytes(512), b"\x89HDF\r\n\x1a\n"])
def test_other_files_are_no_archives(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    assert not is_archive(tmp_path / "x")
    assert not is_archive(tmp_path)


# --- What is refused ---


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "C:evil", "."])
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_names_that_lead_elsewhere_lead_nowhere(
    write: Callable[..., Path], name: str, tmp_path: Path, folder: Path
) -> None:
    path = write(tmp_path / "packed", {"good": b"x", name: b"y"})
    with contextlib.suppress(ConversionError):
        unpack(path, folder)
    outside = {path for path in tmp_path.rglob("*") if folder not in (path, *path.parents)}
    assert outside == {path, folder.parent}
    assert not Path("/evil").exists()


def test_names_that_lead_out_of_a_tar_are_refused(tmp_path: Path, folder: Path) -> None:
    path = write_tar(tmp_path / "packed", {"../evil": b"y"})
    with pytest.raises(ConversionError, match=r"packed: .* '\.\./evil' .*outside the destination"):
        unpack(path, folder)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_in_tars_are_refused(kind: bytes, tmp_path: Path, folder: Path) -> None:
    member = tarfile.TarInfo("weights.th")
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "packed", "w:gz") as file:
        file.addfile(member)
    with pytest.raises(ConversionError, match=r"got a link or device: 'weights.th'"):
        unpack(tmp_path / "packed", folder)
    assert not list(folder.iterdir())


def test_links_in_zips_become_plain_files(tmp_path: Path, folder: Path) -> None:
    entry = zipfile.ZipInfo("weights.th")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "packed", "w") as file:
        file.writestr(entry, "/etc/passwd")
    unpack(tmp_path / "packed", folder)
    assert not (folder / "weights.th").is_symlink()
    assert (folder / "weights.th").read_text() == "/etc/passwd"


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack_module, "ALWAYS_ALLOWED_SIZE", 100_000)
    monkeypatch.setattr(unpack_module, "MAX_FILES", 10)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("kind", ["zip", "tar.gz", "gz", "sparse"])
def test_bombs_are_refused_before_they_fill_the_disk(
    kind: str, tmp_path: Path, folder: Path
) -> None:
    path, bomb = tmp_path / "packed", {"a": bytes(10**7)}
    if kind == "zip":
        write_zip(path, bomb)
    elif kind == "tar.gz":
        write_tar(path, bomb)
    elif kind == "gz":
        path.write_bytes(gzip.compress(bomb["a"]))
    else:
        path.write_bytes(sparse_tar(10**12))
    message = rf"^{re.escape(str(path))}: expected an archive .* that grows at most"
    with pytest.raises(ConversionError, match=message):
        unpack(path, folder)
    assert sum(len(data) for data in read_files(folder).values()) < 2 * unpack_module.COPY_SIZE


def sparse_tar(size: int) -> bytes:
    """Make a tar with a file (GNU's old sparse format) of which nothing but the end is stored."""
    header = bytearray(tarfile.TarInfo("weights.th").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def test_long_headers_are_refused(tmp_path: Path, folder: Path) -> None:
    with tarfile.open(tmp_path / "packed", "w", format=tarfile.PAX_FORMAT) as file:
        member = tarfile.TarInfo("a")
        member.pax_headers = {"comment": "x" * 2**21}
        file.addfile(member)
    with pytest.raises(ConversionError, match=r"got: a header of 2097"):
        unpack(tmp_path / "packed", folder)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_as_many_and_as_large_files_as_are_allowed_are_unpacked(
    write: Callable[..., Path], tmp_path: Path, folder: Path
) -> None:
    weights = random.Random(0).randbytes(200_000)  # which hardly compress
    files = {"weights": weights, **{f"{i}": b"" for i in range(9)}}
    unpack(write(tmp_path / "packed", files), folder)
    assert read_files(folder) == files


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_too_many_files_are_refused(
    write: Callable[..., Path], tmp_path: Path, folder: Path
) -> None:
    path = write(tmp_path / "packed", {f"{i}": b"" for i in range(11)})
    with pytest.raises(ConversionError, match=r"at most 10 files"):
        unpack(path, folder)


def test_truncated_archives_are_refused(packed: Path, folder: Path) -> None:
    data = packed.read_bytes()
    packed.write_bytes(data[: len(data) // 5])
    with pytest.raises(ConversionError):
        unpack(packed, folder)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [(6, 1, "password required"), (8, 99, "compression method is not supported")],
)
def test_zips_that_python_cannot_read_are_refused(
    place: int, value: int, message: str, tmp_path: Path, folder: Path
) -> None:
    path = write_zip(tmp_path / "packed", {"a": b"x"})
    data = bytearray(path.read_bytes())
    data[place] = data[data.find(b"PK\x01\x02") + place + 2] = value  # both headers of the file
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=rf"expected a whole archive, got: .*{message}"):
        unpack(path, folder)


def test_damaged_compression_is_refused(tmp_path: Path, folder: Path) -> None:
    data = gzip.compress(FILES["a.txt"])
    (tmp_path / "packed").write_bytes(data[:10] + b"\xff" * 9 + data[19:])
    with pytest.raises(ConversionError, match="expected a whole archive, got: Error -3"):
        unpack(tmp_path / "packed", folder)


def test_a_name_that_is_file_and_folder_is_refused(tmp_path: Path, folder: Path) -> None:
    path = write_tar(tmp_path / "packed", {"a": b"x", "a/b": b"y"})
    with pytest.raises(ConversionError, match=r"expected a whole archive, got: .*Not a directory"):
        unpack(path, folder)


def test_a_full_disk_is_no_broken_archive(packed: Path, folder: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch("os.makedirs", side_effect=full),
        pytest.raises(OSError, match="No space"),
    ):
        unpack(packed, folder)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(
    st.sampled_from(sorted(ARCHIVES)),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_fuzzed_archives_raise_only_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, kind: str, edits: list[tuple[int, int]]
) -> None:
    place = tmp_path_factory.mktemp("fuzzed")
    data = bytearray(ARCHIVES[kind](place / "packed").read_bytes())
    for position, value in edits:
        data[position % len(data)] = value
    (place / "packed").write_bytes(data)
    (place / "folder").mkdir()
    with contextlib.suppress(ConversionError):
        unpack(place / "packed", place / "folder")
    assert {path.name for path in place.iterdir()} == {"packed", "folder"}


def test_a_tar_with_its_weights_first_is_no_hdf5(tmp_path: Path) -> None:
    write_bilm(tmp_path, make_bilm())
    with tarfile.open(tmp_path / "model.tar", "w") as file:
        for name in ("weights.hdf5", "options.json"):
            file.add(tmp_path / name, name)
    convert_checkpoint(tmp_path / "model.tar", tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_a_file_is_copied_where_it_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "options.json").write_text("{}")
    link(tmp_path / "options.json", tmp_path / "linked")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    link(Path("options.json"), Path("folder/linked"))
    assert (tmp_path / "folder/linked").read_text() == "{}"
    with pytest.raises(FileExistsError):
        link(tmp_path / "options.json", tmp_path / "linked")
    monkeypatch.setattr(Path, "symlink_to", mock.Mock(side_effect=OSError("needs a privilege")))
    link(tmp_path / "options.json", tmp_path / "copied")
    assert (tmp_path / "linked").is_symlink()
    assert not (tmp_path / "copied").is_symlink()
    assert {(tmp_path / name).read_text() for name in ("linked", "copied")} == {"{}"}
