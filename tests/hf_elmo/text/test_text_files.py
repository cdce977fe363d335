"""Text files: names, patterns, addresses, compression and damage."""

import bz2
import errno
import gzip
import io
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from sentence_files import write

from hf_elmo.text.text_files import (
    check_text_names,
    decode_lines,
    decompress,
    find_files,
    measure_file,
    measure_files,
)
from hf_elmo.text.text_reader import read_files, read_sentences


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), ("", bytes)],
)
def test_compressed_files_are_decompressed_while_read(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / f"a.txt{suffix}").write_bytes(compress(b"Ein Satz .\nNoch einer .\n"))

    sentences = list(read_files([tmp_path / "a.txt*"])(None))

    assert sentences == [["Ein", "Satz", "."], ["Noch", "einer", "."]]


def test_zstandard_files_are_decompressed_while_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"Ein Satz .\n"))

    assert list(read_files([tmp_path / "a.zst"])(None)) == [["Ein", "Satz", "."]]


def test_a_pattern_without_files_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"Expected files to read, found none at .*missing-\*"
    ):
        read_files([tmp_path / "missing-*"])


def test_a_pattern_of_files_that_are_all_left_out_is_an_error_that_names_it(tmp_path: Path) -> None:
    files = write(tmp_path, a=["one"], b=["two"])
    pattern = str(tmp_path / "b*")
    with pytest.raises(FileNotFoundError, match=r"found none at .*/b\* apart from the run's own"):
        measure_files([files[0], pattern], leave_out=lambda name: name == files[1])


def test_addresses_are_read_like_files() -> None:
    for name, content in (("a", b"one\n"), ("b", gzip.compress(b"two\n"))):
        with fsspec.open(f"memory://reader/{name}.txt{'.gz' * (name == 'b')}", "wb") as file:
            file.write(content)
    assert list(read_files(["memory://reader/*"])(None)) == [["one"], ["two"]]
    weighted = read_files(["memory://reader/a.txt=2"], has_weights=True)
    assert list(weighted(None)) == [["one"], ["one"]]


def test_an_address_of_no_file_system_is_named() -> None:
    with pytest.raises(ValueError, match="Protocol not known: nonsense"):
        read_files(["nonsense://a"])


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (file,) = write(tmp_path, a=["one"])

    assert list(read_files([file, str(tmp_path / "*.txt")])(None)) == [["one"]]


def test_a_name_with_an_equals_sign_is_no_weight(tmp_path: Path) -> None:
    files = write(tmp_path, **{"a=2": ["one"]})
    assert list(read_files(files, has_weights=True)(None)) == [["one"]]
    Path(files[0]).rename(tmp_path / "a=2")
    assert list(read_files([tmp_path / "a=2"], has_weights=True)(None)) == [["one"]]


def test_two_weights_of_one_file_are_an_error(tmp_path: Path) -> None:
    (file,) = write(tmp_path, a=["one"])
    assert list(read_files([file, file], has_weights=True)(None)) == [["one"]]
    for patterns in ([f"{file}=3", str(tmp_path / "*.txt")], [file, f"{file}=3"]):
        with pytest.raises(ValueError, match=r"Expected one weight of .*a\.txt, got"):
            read_files(patterns, has_weights=True)


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf"])
def test_a_weight_that_is_not_above_0_is_an_error(tmp_path: Path, weight: str) -> None:
    (file,) = write(tmp_path, a=["one"])
    with pytest.raises(ValueError, match=f"a weight above 0 after .*a.txt=, got {weight}"):
        read_files([f"{file}={weight}"], has_weights=True)


def test_a_file_with_two_spellings_of_its_name_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a b\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("a.txt")
    names = ["a.txt", "./a.txt", "./*.txt", tmp_path / "a.txt", "link"]
    assert list(read_files(names)(None)) == [["a", "b"]]
    with pytest.raises(ValueError, match=r"one weight of a.txt, got 2 and 1"):
        read_files(["a.txt=2", "./a.txt"], has_weights=True)


def test_suffixes_may_be_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "TEXT.GZ"
    path.write_bytes(gzip.compress(b"a b"))
    assert list(read_files([path])(None)) == [["a", "b"]]


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("naïve\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"UTF-8 in .*latin\.txt, got byte 0xef in line 1"):
        list(read_files([path])(None))


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
    ],
)
def test_a_compressed_file_that_is_damaged_is_named(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], is_cut: bool
) -> None:
    data = compress(b"".join(b"Satz %d .\n" % number for number in range(1000)))
    middle = len(data) // 2
    data = data[:-20] if is_cut else data[:middle] + bytes(9) + data[middle + 9 :]
    (tmp_path / f"a{suffix}").write_bytes(data)
    with pytest.raises(ValueError, match=rf"a\{suffix} is damaged after line"):
        list(read_files([tmp_path / f"a{suffix}"])(None))


def test_a_compressed_stream_that_cannot_go_back_is_read() -> None:
    class Stream(io.BytesIO):
        def seek(self, *_: object) -> int:
            raise ValueError("Cannot seek streaming HTTP file")

    stream = decompress(Stream(gzip.compress(b"Ein Satz .\n")), "a.gz")
    assert list(read_sentences(stream, "text")) == [["Ein", "Satz", "."]]


def test_a_compressed_pipe_is_read_though_it_has_no_size() -> None:
    end, start = os.pipe()
    with os.fdopen(start, "wb") as file:
        file.write(gzip.compress(b"Ein Satz .\n"))
    with os.fdopen(end, "rb") as pipe:
        assert list(decompress(pipe, "a.gz")) == [b"Ein Satz .\n"]


def test_a_compressed_file_of_a_server_that_does_not_state_its_size_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fsspec.open("memory://unknown/a.gz", "wb") as file:
        file.write(gzip.compress(b"one\n"))
    monkeypatch.setattr(MemoryFileSystem, "size", lambda *_: None)
    monkeypatch.setattr(MemoryFile, "size", None)
    assert measure_file("memory://unknown/a.gz") == 0
    assert list(read_files(["memory://unknown/a.gz"])(None)) == [["one"]]


def test_zstandard_frames_with_a_large_window_are_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "a.zst").write_bytes(frame.compress(b"Ein Satz .\n") + frame.flush())
    assert list(read_files([tmp_path / "a.zst"])(None)) == [["Ein", "Satz", "."]]


def test_an_address_of_a_local_file_is_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ein Satz .\n")
    assert find_files((tmp_path / "a.txt").as_uri()) == [str(tmp_path / "a.txt")]


def test_several_zstandard_frames_are_one_text(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    texts = [b"one\n", b"", b"two\n", b"three\n" * 50_000]
    (tmp_path / "a.zst").write_bytes(b"".join(map(zstandard.compress, texts)))

    words = [["one"], ["two"], *[["three"]] * 50_000]
    assert list(read_files([tmp_path / "a.zst"])(None)) == words


def test_an_error_of_the_disk_is_not_taken_for_a_damaged_file() -> None:
    def fail() -> Iterator[bytes]:
        yield b"A bank\n"
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        list(decode_lines(fail(), "x.txt.gz"))


def test_two_stars_mean_any_number_of_folders(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("1.txt", "a/2.txt", "a/b/3.txt")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert find_files(f"{tmp_path}/**/*.txt") == [str(path) for path in paths]
    assert find_files(f"{tmp_path}/**/**/3.txt") == [str(paths[2])]


@pytest.mark.parametrize(
    "name",
    [
        *("a/text.jsonl", "x.PARQUET", "b.json.gz", "b.json.zst", "s3://x/y.arrow"),
        *("a.conllu", "b.tsv.gz"),
    ],
)
def test_a_dataset_is_no_text(name: str) -> None:
    with pytest.raises(ValueError, match=f"Expected text, got {name}. Its name is that of a da"):
        check_text_names(["text.txt", name])


def test_other_names_are_those_of_text() -> None:
    check_text_names(["text.txt", "text", "json", "a.json/b.gz"])
