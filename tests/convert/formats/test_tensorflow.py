"""TensorFlow 1 checkpoints and modules become models that compute the same."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from bilm_tf import WORDS, Bilm, evaluate, make_bilm, run_model
from hypothesis import given, settings
from hypothesis import strategies as st

from convert import ConversionError, convert_checkpoint
from convert.formats import tensor_bundle
from convert.formats.bilm_hdf5 import open_checkpoint as open_hdf5
from convert.formats.crc32c import crc32c
from convert.formats.tensor_bundle import read_variables
from convert.formats.tensorflow import open_checkpoint
from convert.layout import Sources
from hf_elmo import ElmoForPreTraining, ElmoModel

SENTENCES = [["the", "naïve", "bank", "unheard-of"], [""]]
CLIPS = {"cell_clip": 0.4, "proj_clip": 0.3}
VARIANTS: dict[str, dict[str, Any]] = {
    "everything": CLIPS,
    "one layer": {"num_layers": 1, **CLIPS},
    "unidirectional": {"is_bidirectional": False, **CLIPS},
    "words": {"reads_words": True, **CLIPS},
    "no projections": {"dim": 4, "filters": ((1, 1), (3, 3)), "num_highways": 0},
}

# --- Files as TensorFlow writes them ---


def varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    parts = [
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    ]
    return b"".join(parts)


def masked_sum(data: bytes) -> bytes:
    value = crc32c([data], len(data))
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def block(entries: list[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    """Pack keys and values, each key without what it shares with the one before."""
    data, before = b"", b""
    for key, value in entries:
        shared = next(
            (i for i in range(len(before)) if key[: i + 1] != before[: i + 1]), len(before)
        )
        own, before = key[shared:], key
        data += varint(shared) + varint(len(own)) + varint(len(value)) + own + value
    data += struct.pack("<II", 0, 1)  # one restart, at the beginning
    return data + bytes([compression]) + masked_sum(data + bytes([compression]))


def table(entries: list[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    half = len(entries) // 2
    data, handles = b"", []
    for part in (entries[:half], entries[half:]):
        if part:
            packed = block(part, compression)
            handles.append((part[-1][0], varint(len(data)) + varint(len(packed) - 5)))
            data += packed
    index, meta = block(handles), block([])
    footer = varint(len(data) + len(index)) + varint(len(meta) - 5)
    footer += varint(len(data)) + varint(len(index) - 5)
    return data + index + meta + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def entry(array: np.ndarray, offset: int, *others: tuple[int, int | bytes]) -> bytes:
    dtype = {"f4": 1, "f8": 2, "i4": 3, "f2": 19}[array.dtype.str[1:]]
    shape = b"".join(message((2, message((1, size)))) for size in array.shape)
    fields = [(1, dtype), (2, shape), (4, offset), (5, array.nbytes), *others]
    return message(*fields) + varint(6 << 3 | 5) + masked_sum(array.tobytes())


def write_variables(
    prefix: Path,
    variables: dict[str, np.ndarray],
    *,
    header: tuple[tuple[int, int | bytes], ...] = ((1, 1),),
    compression: int = 0,
    change: Callable[[dict[bytes, bytes]], None] = lambda entries: None,
) -> Path:
    """Write a checkpoint; `change` may break its entries."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    entries, data = {b"": message(*header)}, b""
    for name in sorted(variables):
        array = np.asarray(variables[name])
        entries[name.encode()] = entry(array, len(data))
        data += array.tobytes()
    change(entries)
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    Path(f"{prefix}.index").write_bytes(table(list(entries.items()), compression))
    return prefix


def trainer_name(bilm: Bilm, name: str) -> str:
    """Name a variable as bilm-tf's trainer does."""
    single = bilm.options["lstm"]["n_layers"] == 1
    cell = "" if single else r"multi_rnn_cell/cell_\2/"
    name = re.sub(r"(RNN_\d)/RNN/MultiRNNCell/Cell(\d)/LSTMCell", rf"\1/rnn/{cell}lstm_cell", name)
    for short, long in (("/W_0", "/kernel"), ("/W_P_0", "/projection/kernel"), ("/B", "/bias")):
        name = re.sub(f"{short}$", long, name)
    return "lm/" + (name if bilm.options["bidirectional"] else name.removeprefix("RNN_0/"))


def trained_variables(bilm: Bilm) -> dict[str, np.ndarray]:
    """Give all that the trainer saves: softmax, slots and scalars too."""
    variables = {trainer_name(bilm, name): array for name, array in bilm.variables.items()}
    random, size = np.random.default_rng(1), bilm.options["lstm"]["projection_dim"]
    if not bilm.words:
        variables["lm/softmax/W"] = random.normal(size=(len(WORDS), size)).astype(np.float32)
    variables["lm/softmax/b"] = random.normal(size=len(WORDS)).astype(np.float32)
    slots = {f"{name}/Adagrad": np.ones_like(array) for name, array in variables.items()}
    scalars = {"global_step": np.float32(660), "train_perplexity": np.float32(99)}
    return variables | slots | scalars  # type: ignore[return-value]


def write_trained(folder: Path, bilm: Bilm, **others: Any) -> Path:
    prefix = write_variables(folder / "model.ckpt-660", trained_variables(bilm), **others)
    (folder / "options.json").write_text(json.dumps(bilm.options))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return prefix


def module_variables(bilm: Bilm, scope: str) -> dict[str, np.ndarray]:
    """Give what TF-Hub's module saves: a row for "no token" in front, and its LSTMs' state."""
    names = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
    variables = {}
    for name, array in bilm.variables.items():
        cell, _, variable = name.partition("/LSTMCell/")
        long = f"{cell}/rnn/lstm_cell/{names[variable]}" if variable else name
        is_table = name == "char_embed"
        variables[scope + long] = np.pad(array, ((1, 0), (0, 0))) if is_table else array
    variables[f"{scope}Variable"] = np.zeros((8, 4), np.float32)
    return variables


# --- What comes out ---


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def bilm(request: pytest.FixtureRequest) -> Bilm:
    return make_bilm(**request.param)


@pytest.mark.parametrize("words", SENTENCES)
def test_converted_model_computes_what_bilm_tf_does(
    bilm: Bilm, words: list[str], tmp_path: Path
) -> None:
    write_trained(tmp_path / "saved", bilm)
    convert_checkpoint(tmp_path / "saved", tmp_path / "model")
    got = run_model(tmp_path / "model", words)
    np.testing.assert_allclose(got, evaluate(bilm, words), atol=1e-5, rtol=0)


def test_softmax_and_its_vocabulary_come_along(bilm: Bilm, tmp_path: Path) -> None:
    write_trained(tmp_path / "saved", bilm)
    conversion = convert_checkpoint(tmp_path / "saved", tmp_path / "model")

    variables = trained_variables(bilm)
    weights = variables["lm/embedding" if bilm.words else "lm/softmax/W"]
    model = ElmoForPreTraining.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(model.softmax.weight.detach(), weights)
    np.testing.assert_array_equal(model.softmax.bias.detach(), variables["lm/softmax/b"])
    assert (tmp_path / "model/target_vocab.txt").read_text(encoding="utf-8").split() == WORDS
    assert conversion.left_out == ("variables global_step, train_perplexity",)


def test_softmax_without_vocabulary_is_left_out(tmp_path: Path) -> None:
    write_trained(tmp_path / "saved", make_bilm())
    (tmp_path / "saved/vocab.txt").unlink()
    conversion = convert_checkpoint(tmp_path / "saved", tmp_path / "model")
    assert "lm/softmax/W: needs --vocabulary" in conversion.left_out[0]
    assert conversion.config.vocab_size == 0


@pytest.mark.parametrize("scope", ["bilm/", "module/bilm/"])
def test_module_brings_its_trained_mix_and_no_options(scope: str, tmp_path: Path) -> None:
    bilm = make_bilm(cell_clip=3, proj_clip=3, max_characters=50)
    mix = {
        f"{scope.removesuffix('bilm/')}aggregation/weights": np.array([0.1, 2, -1], np.float32),
        f"{scope.removesuffix('bilm/')}aggregation/scaling": np.float32(0.7),
    }
    module = tmp_path / "module"
    write_variables(module / "variables/variables", module_variables(bilm, scope) | mix)
    with pytest.warns(UserWarning, match=r"took relu, clips of 3, skip connections and 50"):
        conversion = convert_checkpoint(module, tmp_path / "model")

    got = run_model(tmp_path / "model", SENTENCES[0])
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCES[0]), atol=1e-5, rtol=0)
    assert conversion.left_out == (f"variables {scope}Variable",)
    config = ElmoModel.from_pretrained(tmp_path / "model").config
    np.testing.assert_allclose(config.mix_weights, [0.1, 2, -1], rtol=1e-6)
    assert config.mix_gamma == pytest.approx(0.7)


def test_mixes_of_several_tasks_keep_their_names(tmp_path: Path) -> None:
    mixes = {}
    for number, task in enumerate(("input", "output")):
        mixes[f"{task}_ELMo_W"] = np.full(3, number, np.float32)
        mixes[f"{task}_ELMo_gamma"] = np.array([number + 0.5], np.float32)
    prefix = write_variables(tmp_path / "task", module_variables(make_bilm(), "bilm/") | mixes)
    options = tmp_path / "options.json"
    options.write_text(json.dumps(make_bilm().options))
    with open_checkpoint(Sources(prefix)) as checkpoint:
        assert {name: mix.gamma for name, mix in checkpoint.mixes.items()} == {
            "input": 0.5,
            "output": 1.5,
        }
        assert checkpoint.mixes["output"].weights == (1, 1, 1)
        assert checkpoint.config.mix_weights is None


@pytest.mark.parametrize("dtype", ["<f2", "<f8"])
def test_other_float_types_are_read(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    variables = read_variables(write_variables(tmp_path / "model", {"x": array}))
    np.testing.assert_array_equal(variables["x"].read_rows(1, 2), [[3, 4, 5]])
    assert variables["x"].read().dtype == np.float32


# --- Where it is found ---


@pytest.mark.parametrize(
    "name",
    [
        ".",
        "checkpoint",
        "model.ckpt-660",
        "model.ckpt-660.index",
        "model.ckpt-660.meta",
        "model.ckpt-660.data-00000-of-00001",
    ],
)
def test_any_file_of_a_checkpoint_names_it(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    write_trained(folder, make_bilm())
    write_variables(folder / "model.ckpt-1", {"x": np.ones(1, np.float32)})
    (folder / "model.ckpt-660.meta").touch()
    text = 'model_checkpoint_path: "/old/place/model.ckpt-660"\nall_model_checkpoint_paths: "x"\n'
    (folder / "checkpoint").write_text(text)
    conversion = convert_checkpoint(folder / name, tmp_path / "model")
    assert [path.name for path in conversion.files] == [
        "model.ckpt-660.index",
        "model.ckpt-660.data-00000-of-00001",
        "options.json",
        "vocab.txt",
    ]


def test_several_checkpoints_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        write_variables(tmp_path / f"model.ckpt-{number}", {"x": np.ones(1, np.float32)})
    with pytest.raises(ConversionError, match=r"found model.ckpt-1, model.ckpt-2. Name the .index"):
        convert_checkpoint(tmp_path, tmp_path / "model")


def test_data_without_index_is_refused(tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "model", {"x": np.ones(1, np.float32)})
    Path(f"{prefix}.index").unlink()
    with pytest.raises(ConversionError, match=r"found no .index of it"):
        convert_checkpoint(f"{prefix}.data-00000-of-00001", tmp_path / "target")


# --- What is refused ---


def change_entry(
    name: bytes, *fields: tuple[int, int | bytes]
) -> Callable[[dict[bytes, bytes]], None]:
    """Add fields to an entry; of equal ones, the last counts."""

    def change(entries: dict[bytes, bytes]) -> None:
        entries[name] += message(*fields)

    return change


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        ({"header": ()}, "its header is missing"),
        ({"header": ((1, 1), (2, 1))}, "big-endian"),
        ({"compression": 1}, r"compressed \(Snappy\)"),
        ({"compression": 7}, r"compressed \(method 7\)"),
        ({"change": change_entry(b"x", (3, 1))}, "file 1 of 1"),
        ({"change": change_entry(b"x", (4, 1))}, "expected 17 bytes or more in m.data-00000"),
        ({"change": change_entry(b"x", (5, 12))}, r"not as large as its shape \[4\]"),
        ({"change": change_entry(b"x", (7, b""))}, "x is partitioned"),
        ({"change": lambda entries: entries.update({b"x": b"\x0b"})}, "no protobuf"),
        ({"change": lambda entries: entries.update({b"x": b"\x0a\x09"})}, "cut off"),
        ({"change": lambda entries: entries.update({b"x": b"\xff" * 11})}, "does not end"),
        ({"change": lambda entries: entries.update({b"\xff": entries[b"x"]})}, "utf-8"),
    ],
)
def test_broken_index_is_refused(problem: dict[str, Any], error: str, tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)}, **problem)
    with pytest.raises(ConversionError, match=error):
        read_variables(prefix)


@pytest.mark.parametrize("size", [0, 8, 47, 60])
def test_truncated_index_is_refused(size: int, tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)})
    index = Path(f"{prefix}.index")
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(ConversionError, match="does not end as one"):
        read_variables(prefix)


def test_any_changed_byte_of_a_block_is_noticed(tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)})
    index = Path(f"{prefix}.index")
    whole = index.read_bytes()
    for position in range(len(whole) - 48):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        try:
            read_variables(prefix)
        except ConversionError:
            continue
        assert position >= len(whole) - 48 - 13  # the meta index, which is not read


def test_changed_number_is_noticed(tmp_path: Path) -> None:
    prefix = write_trained(tmp_path / "saved", make_bilm())
    path = Path(f"{prefix}.data-00000-of-00001")
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=r"lm/CNN/W_cnn_0 is not what was written"):
        convert_checkpoint(prefix, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_another_model_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    names = {"bert/embeddings/word_embeddings": np.ones(4, np.float32)}
    prefix = write_variables(tmp_path / "bert_model.ckpt", names)
    with pytest.raises(ConversionError, match=r"expected a biLM.*found bert/embeddings/word_emb"):
        convert_checkpoint(prefix, tmp_path / "model")


def test_huge_index_is_refused_unread(tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)})
    with Path(f"{prefix}.index").open("ab") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(ConversionError, match=r"expected an index of at most 16777216 bytes"):
        read_variables(prefix)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_fuzzed_index_raises_only_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    prefix = write_variables(folder / "m", {"a/x": np.ones((2, 3), np.float32), "a/y": np.ones(1)})
    data = bytearray(Path(f"{prefix}.index").read_bytes())
    for position, value in edits:
        data[position % len(data)] = value
    Path(f"{prefix}.index").write_bytes(data)
    # The checksums would stop nearly all of these.
    with mock.patch.object(tensor_bundle, "_check_sum"):
        try:
            variables = read_variables(prefix)
        except ConversionError:
            return
        for variable in variables.values():
            assert variable.read().shape == variable.shape


# --- Beside the project ---

ORACLE = {
    "train_tiny/ckpt": "train_tiny/weights.hdf5",
    "one_layer": "one_layer/weights.hdf5",
    "noproj": "noproj/weights.hdf5",
    "uni": "uni/weights.hdf5",
    "word": "word/weights.hdf5",
}


@pytest.mark.parametrize("name", ORACLE)
def test_checkpoint_equals_what_bilm_tf_dumped_of_it(name: str, shared: Path) -> None:
    folder = shared / "oracle" / "tf_checkpoints"
    vocabulary = folder / "train_tiny/vocab.txt"
    dump = folder / ORACLE[name]
    options = folder / name / "options.json"
    with (
        open_checkpoint(Sources(folder / name, vocabulary=vocabulary)) as trained,
        open_hdf5(Sources(dump, options=options, vocabulary=vocabulary)) as dumped,
    ):
        assert set(trained.tensors) == set(dumped.tensors) | {"softmax.weight", "softmax.bias"}
        for tensor_name, tensor in dumped.tensors.items():
            np.testing.assert_array_equal(trained.tensors[tensor_name].read(), tensor.read())
        assert {**trained.config.to_dict(), "vocab_size": 0} == dumped.config.to_dict()
        assert trained.config.vocab_size == 2124
        assert trained.target_words[:3] == ("<S>", "</S>", "<UNK>")
