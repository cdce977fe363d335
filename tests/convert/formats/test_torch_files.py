"""Files of torch.save are read lazily; what is in them is never executed."""

import collections
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convert import ConversionError
from convert.formats import torch_files
from convert.formats.torch_files import read_state_dict

# As PyTorch saved it before 1.6, and since.
KINDS = {"old": False, "new": True}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def is_zip(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def save(path: Path, content: object, is_zip: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    return path


def test_tensors_are_read_by_rows(is_zip: bool, tmp_path: Path) -> None:
    weight = torch.arange(12.0).reshape(4, 3)
    content = {"weight": weight, "scalar": torch.tensor(2.0), "ids": torch.arange(3)}
    tensors = read_state_dict(save(tmp_path / "x.th", content, is_zip))
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "weight": (4, 3),
        "scalar": (1,),
    }
    np.testing.assert_array_equal(tensors["weight"].read_rows(1, 3), weight[1:3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_become_float32(dtype: torch.dtype, is_zip: bool, tmp_path: Path) -> None:
    path = save(tmp_path / "x.th", {"weight": torch.ones(2, 2, dtype=dtype)}, is_zip)
    assert read_state_dict(path)["weight"].read().dtype == np.float32


def test_state_dicts_of_modules_and_views_are_read(is_zip: bool, tmp_path: Path) -> None:
    content = collections.OrderedDict(torch.nn.Linear(3, 2).state_dict())
    content["transposed"] = content["weight"].T
    tensors = read_state_dict(save(tmp_path / "x.th", content, is_zip))
    np.testing.assert_array_equal(tensors["transposed"].read(), content["weight"].T)


# --- What is refused ---


class Code:
    """What leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return (Path.touch, (self.mark,))


def test_code_is_refused_unexecuted(is_zip: bool, tmp_path: Path) -> None:
    path = save(tmp_path / "x.th", {"weight": Code(tmp_path / "mark")}, is_zip)
    with pytest.raises(
        ConversionError, match=r"expected tensors.*without code, got: Weights only load"
    ):
        read_state_dict(path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ([torch.ones(2)], "expected tensors by name, got list"),
        ({1: torch.ones(2)}, "expected tensors by name, got dict"),
        ({"a": {"b": torch.ones(2)}}, "a: expected a plain tensor, got <class 'dict'>"),
        (
            {"a": torch.ones(2).to_sparse()},
            "a: expected a plain tensor, got <class 'torch.Tensor'>",
        ),
        ({"a": torch.ones(2, device="meta")}, "a: expected a plain tensor"),
        ({"a": torch.ones(1).expand(1 << 40)}, "a: expected a tensor within the file"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")  # of torch 2.14
def test_other_contents_are_refused(content: object, error: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=error):
        read_state_dict(save(tmp_path / "x.th", content))


@pytest.mark.parametrize("data", [b"", b"x", b"\x80\x02.", b"PK\x03\x04", b"\x00" * 100])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.th").write_bytes(data)
    with pytest.raises(ConversionError, match=r"expected (tensors|a file) of torch.save"):
        read_state_dict(tmp_path / "x.th")


def test_truncated_files_are_refused(is_zip: bool, tmp_path: Path) -> None:
    path = save(tmp_path / "x.th", {"weight": torch.ones(100, 100)}, is_zip)
    data = path.read_bytes()
    for size in range(0, len(data), 997):
        path.write_bytes(data[:size])
        with pytest.raises(ConversionError):
            read_state_dict(path)


def test_packed_zips_are_refused_unread(tmp_path: Path) -> None:
    source = save(tmp_path / "x.th", {"weight": torch.zeros(1000)})
    with (
        zipfile.ZipFile(source) as file,
        zipfile.ZipFile(tmp_path / "y.th", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in file.namelist():
            packed.writestr(name, file.read(name))
    with pytest.raises(ConversionError, match=r"got a zip with a compressed"):
        read_state_dict(tmp_path / "y.th")


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_fuzzed_files_raise_only_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, is_zip: bool, edits: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.th"
    buffer = io.BytesIO()
    content = {"weight": torch.ones(3, 2), "bias": torch.ones(2)}
    torch.save(content, buffer, _use_new_zipfile_serialization=is_zip)
    data = bytearray(buffer.getvalue())
    for position, value in edits:
        data[position % len(data)] = value
    path.write_bytes(data)
    try:
        tensors = read_state_dict(path)
    except ConversionError:
        return
    for tensor in tensors.values():
        assert tensor.read().shape == tensor.shape


def test_no_file_is_mapped_on_windows_where_it_could_not_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "weights", {"w": torch.ones(2)})
    load = mock.Mock(wraps=torch.load)
    monkeypatch.setattr(torch, "load", load)
    read_state_dict(path)
    monkeypatch.setattr("convert.formats.torch_files.os", mock.Mock(name="os"))
    torch_files.os.name = "nt"
    read_state_dict(path)
    assert [call.kwargs["mmap"] for call in load.call_args_list] == [True, False]
