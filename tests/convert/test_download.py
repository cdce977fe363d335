"""Files are downloaded once, whole, and from servers that are slow, break off, lie or say no."""

import gzip
import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_server import FileServer

from convert import ConversionError
from convert import download as download_module
from convert.download import download, is_address, show_address

DATA = np.random.default_rng(0).bytes(300_000)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Google Drive -\n Virus scan</title></head>...</html>"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(download_module, "BACKOFF", 0.0)
    monkeypatch.setattr(download_module, "BLOCK_SIZE", 1 << 12)
    return tmp_path / "cache"


def test_a_file_is_downloaded_with_its_name_size_and_checksum(server: FileServer) -> None:
    address = server.put("/models/weights.hdf5", DATA)
    path, item = download([address])
    assert (path.name, path.read_bytes()) == ("weights.hdf5", DATA)
    assert (item.address, item.name, item.bytes) == (address, "weights.hdf5", len(DATA))
    assert item.sha256 == hashlib.sha256(DATA).hexdigest()


def test_a_file_is_downloaded_once(server: FileServer) -> None:
    address = server.put("/weights.hdf5", DATA)
    assert download([address]) == download([address])
    assert len(server.requests) == 1


def test_a_file_that_was_deleted_or_cut_is_downloaded_again(server: FileServer) -> None:
    address = server.put("/weights.hdf5", DATA)
    path, _ = download([address])
    path.unlink()
    assert download([address])[0].read_bytes() == DATA
    path.write_bytes(DATA[:5])
    assert download([address])[0].read_bytes() == DATA


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("/weights.hdf5?dl=1", None, "weights.hdf5"),
        ("/download?id=7", "weights.hdf5", "weights.hdf5"),
        ("/weights%20of%20mine.hdf5", None, "weights of mine.hdf5"),
        ("/x.zip", "../../evil/weights.hdf5", "weights.hdf5"),
        ("/x.zip", "..", "x.zip"),
        ("/2", None, "2"),
        (f"/{'%E5%AD%97' * 120}.hdf5", None, f"{'字' * 65}.hdf5"),
        ("/a%00b%0Ac.hdf5", None, "a_b_c.hdf5"),
        ("/a%3Ab%3Fc%C2%9B.hdf5", None, "a_b_c_.hdf5"),
        ("/", None, "file"),
    ],
)
def test_the_name_is_the_servers_or_that_of_the_address(
    path: str, name: str | None, expected: str, server: FileServer
) -> None:
    assert download([server.put(path, DATA, name=name)])[0].name == expected


def test_redirects_are_followed(server: FileServer) -> None:
    goal = server.put("/store/elmo-2.tar.gz", DATA)
    address = server.put("/google/elmo/2", b"", redirect=goal)
    path, item = download([address])
    assert (path.name, path.read_bytes(), item.address) == ("elmo-2.tar.gz", DATA, address)


# --- Servers that stop or lie ---


def test_a_download_that_breaks_off_goes_on_where_it_stopped(server: FileServer) -> None:
    address = server.put("/x.zip", DATA, breaks_at=24 << 12)  # every time
    assert download([address])[0].read_bytes() == DATA
    starts = [None, "bytes=98304-", "bytes=196608-", "bytes=294912-"]
    assert [request.range for request in server.requests] == starts


def interrupt_download(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a download, and interrupt it after 50,000 bytes."""
    count = 0

    def update(bar: Any, number: int) -> None:
        nonlocal count
        count += number
        if count > 50_000:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tqdm.tqdm.update", update)
        with pytest.raises(KeyboardInterrupt):
            download([address])


def test_an_interrupted_download_goes_on_in_the_next_run(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("/x.zip", DATA)
    interrupt_download(address, monkeypatch)
    assert download([address])[0].read_bytes() == DATA
    (_, second) = server.requests
    assert second.range is not None
    assert int(second.range[6:-1]) > 40_000


@pytest.mark.parametrize("change", [{"has_ranges": False}, {"has_tag": False}])
def test_without_ranges_or_versions_it_begins_anew(
    change: dict[str, Any], server: FileServer
) -> None:
    address = server.put("/x.zip", DATA, breaks_at=100_000, num_faults=1, **change)
    assert download([address])[0].read_bytes() == DATA


def test_another_part_than_was_asked_for_is_not_taken(server: FileServer) -> None:
    address = server.put("/x.zip", DATA, breaks_at=24 << 12, num_faults=1, shift=4096)
    assert download([address])[0].read_bytes() == DATA


def test_a_file_that_has_become_shorter_is_downloaded_anew(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("/x.zip", DATA)
    interrupt_download(address, monkeypatch)
    server.put("/x.zip", DATA[:9], heeds_versions=False)
    assert download([address])[0].read_bytes() == DATA[:9]


@pytest.mark.parametrize("heeds_versions", [True, False])
def test_another_version_is_not_appended(
    heeds_versions: bool, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("/x.zip", DATA)
    interrupt_download(address, monkeypatch)
    server.put("/x.zip", DATA[::-1], heeds_versions=heeds_versions)
    assert download([address])[0].read_bytes() == DATA[::-1]


def test_a_weak_tag_does_not_prove_equal_bytes(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak: dict[str, Any] = {"has_tag": False, "headers": {"ETag": 'W/"1"'}}
    address = server.put("/x.zip", DATA, **weak)
    interrupt_download(address, monkeypatch)
    server.put("/x.zip", DATA[::-1], heeds_versions=False, **weak)
    assert download([address])[0].read_bytes() == DATA[::-1]


def test_an_interrupted_download_of_unknown_length_begins_anew(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("/x.zip", DATA, has_length=False)
    interrupt_download(address, monkeypatch)
    assert download([address])[0].read_bytes() == DATA


CUT = 24 << 12
TAG = f'"{hashlib.sha256(DATA).hexdigest()}"'
REST = {"ETag": TAG, "Content-Range": f"bytes {CUT}-{len(DATA) - 1}/{len(DATA)}"}


@pytest.mark.parametrize(
    "part",
    [
        (206, {**REST, "Content-Range": f"bytes {CUT}-{CUT + 99}/{len(DATA)}"}, DATA[:100]),
        (206, {**REST, "Content-Range": f"bytes {CUT}-{len(DATA)}/{len(DATA) + 1}"}, b"x" * 201697),
        (206, {**REST, "Content-Range": f"bytes {CUT}-{len(DATA) - 1}/*"}, DATA[CUT:]),
        (206, {**REST, "ETag": '"other"'}, DATA[CUT:]),
        (206, {"Content-Range": REST["Content-Range"]}, DATA[CUT:]),
        (206, {"ETag": TAG}, DATA[CUT:]),
        (206, {**REST, "Content-Encoding": "gzip"}, gzip.compress(DATA[CUT:])),
        (206, REST, DATA[CUT : CUT + 100]),
        (416, {"Content-Range": f"bytes */{CUT}"}, b""),
        (416, {}, b""),
    ],
    ids=[
        *("short", "longer", "no total", "other tag", "no tag", "no range", "encoded", "cut"),
        *("at its end", "not satisfiable"),
    ],
)
def test_a_part_that_is_not_proved_to_be_the_rest_is_not_taken(
    part: tuple[int, dict[str, str], bytes], server: FileServer
) -> None:
    address = server.put("/x.zip", DATA, breaks_at=CUT, num_faults=1, part=part)
    assert download([address])[0].read_bytes() == DATA
    assert [request.range for request in server.requests] == [None, f"bytes={CUT}-", None]


@pytest.mark.parametrize("status", [204, 206])
def test_an_answer_that_is_not_the_file_is_an_error(status: int, server: FileServer) -> None:
    address = server.put("/x.zip", DATA, status=status)
    with pytest.raises(ConversionError, match=f"expected the file, the server answers {status}"):
        download([address])


def test_the_beginning_from_another_address_is_not_continued(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.put("/x.zip", DATA, breaks_at=CUT, num_faults=1, part=(404, {}, b""))
    second = server.put("/y.zip", DATA)
    assert download([first, second])[1].address == second
    assert server.requests[-1].range is None


def test_an_encoded_file_is_kept_as_it_was_sent(server: FileServer) -> None:
    packed = gzip.compress(DATA)
    address = server.put("/x.txt", packed, headers={"Content-Encoding": "gzip"})
    assert download([address])[0].read_bytes() == packed


def test_a_file_in_the_cache_that_is_not_the_catalogues_is_downloaded_again(
    server: FileServer,
) -> None:
    address = server.put("/x.zip", DATA[::-1])
    download([address])
    server.put("/x.zip", DATA)
    assert download([address], sha256=TAG.strip('"'))[0].read_bytes() == DATA


def test_a_file_in_the_cache_of_another_size_than_the_catalogues_is_downloaded_again(
    server: FileServer,
) -> None:
    address = server.put("/x.zip", DATA[:9])
    download([address])
    server.put("/x.zip", DATA)
    assert download([address], size=len(DATA))[0].read_bytes() == DATA


def test_a_server_that_tells_too_great_a_length_is_an_error(server: FileServer) -> None:
    address = server.put("/x.zip", DATA, length=len(DATA) + 5, has_tag=False)
    with pytest.raises(ConversionError, match=r"x.zip: no whole answer: .*300,000 bytes are here"):
        download([address])


def test_a_server_that_tells_too_small_a_length_is_an_error_if_the_size_is_known(
    server: FileServer, cache: Path
) -> None:
    address = server.put("/x.zip", DATA, length=1000)
    error = r"expected 300000 bytes with the SHA-256 \(any\), got 1000 with"
    with pytest.raises(ConversionError, match=error):
        download([address], size=len(DATA))
    server.put("/x.zip", DATA)
    assert download([address], size=len(DATA))[0].read_bytes() == DATA


def test_another_checksum_is_an_error(server: FileServer) -> None:
    address = server.put("/x.zip", DATA)
    with pytest.raises(
        ConversionError, match=r"with the SHA-256 0{64}, got 300000 with [0-9a-f]{64}"
    ):
        download([address], sha256="0" * 64)
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert download([address], sha256=sha256)[1].sha256 == sha256


def test_a_slow_server_is_waited_for(server: FileServer) -> None:
    address = server.put("/x.zip", DATA, block_size=100_000, wait=0.05)
    assert download([address])[0].read_bytes() == DATA


def test_a_server_that_falls_silent_is_an_error(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "TIMEOUT", (1, 0.2))
    address = server.put("/x.zip", DATA, block_size=1 << 17, wait=1.0, has_ranges=False)
    with pytest.raises(ConversionError, match=r"no whole answer: .*timed out"):
        download([address])


# --- Servers that say no ---


def test_a_busy_server_is_asked_again(server: FileServer) -> None:
    address = server.put("/x.zip", DATA, status=503, num_faults=2)
    assert download([address])[0].read_bytes() == DATA


def test_a_server_that_asks_to_wait_for_a_day_is_an_error(server: FileServer) -> None:
    address = server.put("/x.zip", DATA, status=429, headers={"Retry-After": "86400"})
    error = r"429 Too Many Requests, try again later \(Retry-After: 86400\)"
    with pytest.raises(ConversionError, match=error):
        download([address])


@pytest.mark.parametrize(("status", "reason"), [(503, "Service Unavailable"), (404, "Not Found")])
def test_refusals_are_told(status: int, reason: str, server: FileServer) -> None:
    address = server.put("/x.zip", DATA, status=status)
    with pytest.raises(ConversionError, match=rf"x.zip: the server answers {status} {reason}"):
        download([address])


def test_no_server_at_all_is_an_error() -> None:
    with pytest.raises(ConversionError, match=r"127.0.0.1:9/x.zip: no whole answer: .*refused"):
        download(["http://127.0.0.1:9/x.zip"])


def test_the_second_address_is_tried(server: FileServer) -> None:
    first, second = server.put("/x.zip", b"", status=404), server.put("/y.zip", DATA)
    path, item = download([first, second])
    assert (path.read_bytes(), item.address) == (DATA, second)
    assert download([first, second])[0] == path


def test_all_addresses_are_named_if_none_does(server: FileServer) -> None:
    addresses = [server.put("/x.zip", b"", status=404), server.put("/y.zip", PAGE)]
    with pytest.raises(ConversionError, match=r"(?s)x.zip: .* 404 .*\n.*y.zip: .* got a web page"):
        download(addresses)


@pytest.mark.parametrize(
    "page", [PAGE, b"\n<!-- x -->\n<HTML><TITLE>Google Drive - Virus scan</TITLE>"]
)
def test_a_page_in_place_of_a_file_is_named_as_such(page: bytes, server: FileServer) -> None:
    address = server.put("/open?id=7", page)
    error = r"expected a file, got a web page \('Google Drive - Virus scan'\)"
    with pytest.raises(ConversionError, match=error):
        download([address])


def test_a_page_inside_a_file_is_no_page(server: FileServer) -> None:
    data = bytes(download_module.BLOCK_SIZE) + PAGE
    assert download([server.put("/x.zip", data)])[0].read_bytes() == data


# --- Bounds ---


def test_a_file_larger_than_the_catalogues_is_refused_before_it_is_downloaded(
    server: FileServer,
) -> None:
    address = server.put("/x.zip", DATA)
    error = r"expected at most 1,000 bytes, the server has 300,000"
    with pytest.raises(ConversionError, match=error):
        download([address], size=1000)


def test_a_file_of_unknown_length_beyond_the_bound_is_refused_and_not_kept(
    server: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "MAX_SIZE", 200_000)
    address = server.put("/x.zip", DATA, has_length=False)
    with pytest.raises(ConversionError, match=r"expected at most 200,000 bytes, got more"):
        download([address])
    assert not list(cache.rglob("partial"))


@pytest.mark.parametrize("told", [None, 10**15])
def test_files_beyond_the_bound_are_refused(
    told: int | None, server: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "MAX_SIZE", 200_000)
    address = server.put("/x.zip", DATA, length=told)
    with pytest.raises(ConversionError, match=r"expected at most 200,000 bytes, the server has"):
        download([address])
    assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) <= 200_000


def test_offline_nothing_is_asked_for(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server.put("/x.zip", DATA)
    path, _ = download([address])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert download([address])[0] == path
    with pytest.raises(ConversionError, match=r"y.zip: is not in the cache, and HF_HUB_OFFLINE"):
        download([server.url + "/y.zip"])


def test_two_at_once_download_once(server: FileServer) -> None:
    address = server.put("/x.zip", DATA, block_size=50_000, wait=0.02)
    threads = [threading.Thread(target=download, args=([address],)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [("https://host/x.zip", True), ("http://host", True), ("ftp://host/x", False), ("x", False)],
)
def test_addresses_are_told_from_paths(source: str, expected: bool) -> None:
    assert is_address(source) == expected


@pytest.mark.parametrize("note", ["[]", "{}", "no JSON"])
def test_a_note_of_another_form_is_ignored(
    note: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("/x.zip", DATA)
    interrupt_download(address, monkeypatch)
    (path,) = tmp_path.rglob("version.json")
    path.write_text(note)
    assert download([address])[0].read_bytes() == DATA


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://a.org/m.zip?export=download&id=7", "http://a.org/m.zip?export=download&id=7"),
        ("https://alice:S3CRET@a.org:80/m.zip", "https://a.org:80/m.zip"),
        (
            "https://a.org/m?X-Amz-Credential=AB%2F1&x=1&X-Amz-Signature=CD&sig=EF",
            "https://a.org/m?X-Amz-Credential=…&x=1&X-Amz-Signature=…&sig=…",
        ),
        ("https://a.org/m?x=1;sig=AB#access_token=CD", "https://a.org/m?x=1;sig=…"),
    ],
)
def test_what_gives_access_to_a_file_is_not_shown(address: str, shown: str) -> None:
    assert show_address(address) == shown


def test_what_gives_access_to_a_file_is_not_recorded(server: FileServer, cache: Path) -> None:
    address = server.put("/x.zip?token=S3CRET", DATA)
    _, item = download([address])
    assert item.address == server.url + "/x.zip?token=…"
    (record,) = cache.rglob("download.json")
    assert "S3CRET" not in record.read_text(encoding="utf-8")


@pytest.mark.parametrize("is_offline", [False, True])
def test_errors_do_not_show_what_gives_access_to_a_file(
    is_offline: bool, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)
    query = "/x.zip?token=S3CRET"
    with pytest.raises(ConversionError) as caught:
        download([server.url + query, "http://127.0.0.1:9" + query])
    assert "S3CRET" not in str(caught.value)
