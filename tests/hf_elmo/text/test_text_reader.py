import bz2
import errno
import gzip
import io
import itertools
import lzma
import os
import random
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hf_elmo.text import text_reader as text_module
from hf_elmo.text.text_reader import (
    decode_lines,
    find_files,
    read_dataset,
    read_files,
    read_sentences,
    shuffle,
)


def write(folder: Path, **files: list[str]) -> list[str]:
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return [str(folder / f"{name}.txt") for name in files]


def test_lines_become_words_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = write(tmp_path, a=["The bank .", "", "  ", "A river"], b=["é 你"])

    sentences = list(read_files(files)(None))

    assert sentences == [["The", "bank", "."], ["A", "river"], ["é", "你"]]


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


def test_utf_16_without_a_mark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("The bank\n".encode("utf-16le"))
    with pytest.raises(ValueError, match=r"got a NUL in line 1.*iconv -f utf-16le"):
        list(read_files([tmp_path / "a.txt"])(None))
    with pytest.raises(ValueError, match="got a NUL in line 1"):
        list(read_sentences(io.BytesIO(b"a\0b\n"), "text"))


def test_a_file_whose_lines_end_with_carriage_returns_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mac.txt").write_bytes(b"a b\rc d\r")
    (tmp_path / "windows.txt").write_bytes(b"a b\r\nc d\r\n")
    assert len(list(read_files([tmp_path / "windows.txt"])(None))) == 2
    assert not caplog.text
    read = read_files([tmp_path / "mac.txt"])
    for _ in range(2):
        assert list(read(None)) == [["a", "b", "c", "d"]]
    assert caplog.text.count("mac.txt contains carriage returns within lines") == 1


def test_a_pattern_without_files_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"Expected files to read, found none at .*missing-\*"
    ):
        read_files([tmp_path / "missing-*"])


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


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_weight_says_how_often_a_pass_goes_over_files(tmp_path: Path, seed: int | None) -> None:
    old, new, other = write(tmp_path, old=["o"] * 1000, new=["n"] * 100, other=["x"] * 10)
    text = read_files([f"{old}=0.25", f"{new}=2.5", other], has_weights=True)

    counts = Counter(word for (word,) in text(None if seed is None else random.Random(seed)))

    assert 200 < counts["o"] < 300
    assert 230 < counts["n"] < 270
    assert counts["x"] == 10


def test_a_weighted_pass_takes_another_share_each_time(tmp_path: Path) -> None:
    (file,) = write(tmp_path, a=[str(i) for i in range(100)])
    text = read_files([f"{file}=0.5"], has_weights=True)

    first, second = (sorted(text(random.Random(seed))) for seed in (1, 2))

    assert first != second
    assert first == sorted(text(random.Random(1)))


def test_a_name_with_an_equals_sign_is_no_weight(tmp_path: Path) -> None:
    files = write(tmp_path, **{"a=2": ["one"]})
    assert list(read_files(files, has_weights=True)(None)) == [["one"]]


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


def test_a_shuffled_pass_has_every_sentence_once_from_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "OPEN_FILES", 8)
    names = [f"f{number:02}" for number in range(20)]  # more than are open at once
    files = write(tmp_path, **{name: [f"{name} {i}" for i in range(30)] for name in names})
    text = read_files(files)

    shuffled = list(text(random.Random(1)))

    assert sorted(shuffled) == sorted(text(None))
    assert len({name for name, _ in shuffled[:50]}) > text_module.OPEN_FILES


def test_a_part_of_a_shuffled_pass_is_mixed_as_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BUFFER_SIZE", 1)
    files = write(tmp_path, large=["large"] * 9000, small=["small"] * 1000)
    sentences = itertools.islice(read_files(files)(random.Random(1)), 1000)
    assert 70 <= sum(words == ["small"] for words in sentences) <= 130


def test_the_shuffled_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    text = read_files(write(tmp_path, a=[str(i) for i in range(50)]))

    assert list(text(random.Random(1))) == list(text(random.Random(1)))
    assert list(text(random.Random(1))) != list(text(random.Random(2)))


def test_shuffling_holds_no_more_than_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "BUFFER_SIZE", 10)
    lines = [str(i) for i in range(1000)]
    taken: list[str] = []

    def count() -> object:
        for line in lines:
            taken.append(line)
            yield line

    shuffled = shuffle(count(), random.Random(0))  # type: ignore[arg-type]
    first = [next(shuffled) for _ in range(5)]

    assert len(taken) == 15
    assert sorted([*first, *shuffled]) == sorted(lines)


def test_a_dataset_gives_the_lines_of_its_column() -> None:
    examples = [{"body": "One sentence .\n\nAnother one ."}, {"body": "A third"}]

    sentences = list(read_dataset(examples, "body")(None))

    assert sentences == [["One", "sentence", "."], ["Another", "one", "."], ["A", "third"]]


def test_a_dataset_may_hold_words_and_lack_texts() -> None:
    examples = [{"text": ["EU", "rejects"]}, {"text": None}, {"text": []}]
    assert list(read_dataset(examples)(None)) == [["EU", "rejects"]]
    with pytest.raises(ValueError, match="Expected text or words in column 'text', got 3"):
        list(read_dataset([{"text": 3}])(None))


def test_the_text_of_a_dataset_is_checked_like_that_of_a_file() -> None:
    assert list(read_dataset([{"text": "\ufeffEU rejects"}])(None)) == [["EU", "rejects"]]
    with pytest.raises(ValueError, match="got a NUL in line 2"):
        list(read_dataset([{"text": "a\nb\0c"}])(None))


def test_raw_text_of_a_dataset_is_cut_as_that_of_files() -> None:
    text = read_dataset([{"text": "It's here. Yes."}], input_format="raw")
    assert list(text(None)) == [["It", "'s", "here", "."], ["Yes", "."]]


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


def test_a_dataset_can_be_read_again_and_shuffled() -> None:
    text = read_dataset([{"text": str(i)} for i in range(50)])

    shuffled = list(text(random.Random(0)))

    assert shuffled != list(text(None))
    assert sorted(shuffled) == sorted(text(None))


def test_a_dataset_without_the_column_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expected a column 'text' of text, got body"):
        list(read_dataset([{"body": "x"}])(None))


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ("naïve\n".encode("latin-1"), "iconv -f latin1"),
        ("naïve\n".encode("utf-16"), "iconv -f utf-16"),
        (gzip.compress(b"a text", mtime=0), "compressed by gzip"),
        (lzma.compress(b"a text"), "compressed by xz"),
        (b"PAR1\x15\x04\x15\xff", "a parquet file"),
    ],
)
def test_text_that_is_not_utf_8_is_named(data: bytes, advice: str, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"Expected UTF-8 in .*latin\.txt, got byte .*{advice}"):
        list(read_files([path])(None))


@pytest.mark.parametrize(
    ("lines", "input_format", "message"),
    [
        (
            [b"good\n", b"na\xefve\n"],
            "text",
            "UTF-8 in x.txt, got byte 0xef in line 2, column 3. Convert",
        ),
        (
            [b"1\tword\n"],
            "conllu",
            "Line 1 of x.txt is not CoNLL-U: expected 10 columns between tabs, got 2",
        ),
    ],
)
def test_malformed_text_is_refused_by_its_line(
    lines: list[bytes], input_format: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(read(lines, input_format))


def compress_with_zstandard(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", compress_with_zstandard),
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


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_an_empty_compressed_file_is_refused(tmp_path: Path, suffix: str) -> None:
    if suffix == "zst":
        pytest.importorskip("zstandard")
    (tmp_path / f"a.{suffix}").touch()
    with pytest.raises(
        ValueError, match=rf"a complete compressed file, but .*a\.{suffix} is empty"
    ):
        list(read_files([tmp_path / f"a.{suffix}"])(None))


def test_a_compressed_stream_that_cannot_go_back_is_read() -> None:
    class Stream(io.BytesIO):
        def seek(self, *_: object) -> int:
            raise ValueError("Cannot seek streaming HTTP file")

    stream = text_module.decompress(Stream(gzip.compress(b"Ein Satz .\n")), "a.gz")
    assert list(read_sentences(stream, "text")) == [["Ein", "Satz", "."]]


def test_an_empty_compressed_file_of_a_server_is_refused() -> None:
    with fsspec.open("memory://empty/a.gz", "wb"):
        pass
    with pytest.raises(
        ValueError, match=r"complete compressed file, but memory://.*a\.gz is empty"
    ):
        list(read_files(["memory://empty/a.gz"])(None))


def test_zstandard_frames_with_a_large_window_are_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "a.zst").write_bytes(frame.compress(b"Ein Satz .\n") + frame.flush())
    assert list(read_files([tmp_path / "a.zst"])(None)) == [["Ein", "Satz", "."]]


def test_several_zstandard_frames_are_one_text(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    texts = [b"one\n", b"", b"two\n", b"three\n" * 50_000]
    (tmp_path / "a.zst").write_bytes(b"".join(map(zstandard.compress, texts)))

    words = [["one"], ["two"], *[["three"]] * 50_000]
    assert list(read_files([tmp_path / "a.zst"])(None)) == words


def read(lines: list[bytes], input_format: Any, pipeline: str = "en") -> Iterator[list[str]]:
    return read_sentences(io.BytesIO(b"".join(lines)), input_format, pipeline, "x.txt")


@pytest.mark.parametrize("form", ["text", "raw", "conllu"])
def test_a_byte_order_mark_alone_is_no_sentence(form: str) -> None:
    assert list(read(["\ufeff".encode()], form)) == []


def test_a_byte_order_mark_is_left_out_of_the_first_line_only() -> None:
    lines = ["\ufeffA\n", "\ufeffbank\n"]
    assert list(read([line.encode() for line in lines], "text")) == [["A"], ["\ufeffbank"]]


def test_an_error_of_the_disk_is_not_taken_for_a_damaged_file() -> None:
    def fail() -> Iterator[bytes]:
        yield b"A bank\n"
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        list(decode_lines(fail(), "x.txt.gz"))


def test_text_is_a_sentence_a_line() -> None:
    lines = ["\ufeffThe  bank\r\n", "\n", " A river\u2028bank"]
    sentences = list(read([line.encode() for line in lines], "text"))
    assert sentences == [["The", "bank"], [], ["A", "river", "bank"]]


CONLLU = ["# text = vámonos", "1-2\tvámonos", "1\tvamos", "2\tnos", "2.1\tgap", "", "", "1\tfin"]
CONLLU_LINES = [(row + "\t_" * 8 if "\t" in row else row).encode() + b"\n" for row in CONLLU]


def test_conllu_gives_its_syntactic_words() -> None:
    assert list(read(CONLLU_LINES, "conllu")) == [["vamos", "nos"], ["fin"]]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_files_to_train_on_may_be_conllu(tmp_path: Path, seed: int | None) -> None:
    (tmp_path / "a.conllu.gz").write_bytes(gzip.compress(b"".join(CONLLU_LINES)))
    text = read_files([tmp_path / "a.conllu.gz"], "conllu")

    assert sorted(text(None if seed is None else random.Random(seed))) == [
        ["fin"],
        ["vamos", "nos"],
    ]


def test_raw_text_is_cut_by_spacy() -> None:
    lines = [b"The bank's rates rose.  A  river. \n", b"  \n", b"New\tline"]
    sentences = list(read(lines, "raw", "en"))
    assert sentences == [
        ["The", "bank", "'s", "rates", "rose", "."],
        ["A", "river", "."],
        ["New", "line"],
    ]


def test_a_line_of_raw_text_may_have_more_than_a_million_characters() -> None:
    word = "abcdefghi" * 9
    assert list(read([f"{word} ".encode() * 12_500], "raw", "en")) == [[word] * 12_500]


PARAGRAPH = "The old man sat down by the river and looked at the water. He was tired. "


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        (textwrap.fill(PARAGRAPH * 9, 40), True),
        (f"{PARAGRAPH}\n" * 9 + "and so on\n", False),
        (textwrap.fill(PARAGRAPH * 9, 40).lower(), False),
        (textwrap.fill(PARAGRAPH, 40), False),
    ],
    ids=["wrapped", "paragraphs", "no capitals", "few lines"],
)
def test_wrapped_raw_text_is_warned_of_once(
    text: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "book.txt").write_text(text)
    read = read_files([tmp_path / "book.txt"], "raw")
    for _ in range(2):
        assert list(read(None))
    assert caplog.text.count("book.txt begin with a small letter") == warns


def test_a_folder_named_like_the_language_is_no_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fi").mkdir()
    assert list(read([b"Yksi talo."], "raw", "fi")) == [["Yksi", "talo", "."]]


def test_raw_text_leaves_its_words_out_of_the_vocab_of_the_pipeline() -> None:
    strings = text_module._load_pipeline("en").vocab.strings
    list(read([b"A first text."], "raw", "en"))
    before = len(strings)
    lines = [f"word{number} .\n".encode() for number in range(2 * text_module.LINES_AT_ONCE)]
    assert list(read(lines, "raw", "en")) == [line.decode().split() for line in lines]
    assert len(strings) == before


def test_a_language_whose_tokenizer_is_missing_gets_the_error_of_spacy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(name: str) -> None:
        raise ImportError("Install SudachiPy.")

    monkeypatch.setattr("spacy.blank", load)
    with pytest.raises(ValueError, match=r"got 'ja'.*Install SudachiPy\."):
        list(read([b"text"], "raw", "ja"))


def test_an_unknown_language_is_told() -> None:
    with pytest.raises(ValueError, match="Expected a spaCy language or pipeline, got 'xq'"):
        list(read([b"text"], "raw", "xq"))


def test_two_stars_mean_any_number_of_folders(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("1.txt", "a/2.txt", "a/b/3.txt")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert find_files(f"{tmp_path}/**/*.txt") == [str(path) for path in paths]
    assert find_files(f"{tmp_path}/**/**/3.txt") == [str(paths[2])]


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match=r"It is a folder: name its files, '.*/[*]'"):
        find_files(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="It is not a regular file"):
        find_files(str(tmp_path / "pipe"))


def test_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    for read in (
        lambda form: read_files(write(tmp_path, a=["x"]), form),
        lambda form: read_dataset([{"text": "x"}], input_format=form),
        lambda form: read_sentences(io.BytesIO(b"x"), form),
    ):
        with pytest.raises(ValueError, match="of the formats text, raw, conllu, got 'CoNLLU'"):
            read("CoNLLU")
