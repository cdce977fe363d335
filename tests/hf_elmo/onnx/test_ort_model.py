"""ONNX Runtime computes the same as PyTorch, or says why it cannot."""

import copy
import json
import multiprocessing
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from random_bilms import draw_batch, draw_config, run
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.onnx import OrtElmoModel, ort_model

TEXT = Path(__file__).parents[2] / "data" / "lighthouse.txt"
TOLERANCE = {"rtol": 0, "atol": 1e-5}  # sums in another order, in float32
MIN_COSINE = 0.9995  # of vectors in 8 bits to those in float32


@pytest.fixture
def inputs(tiny_config: ElmoConfig) -> dict[str, Tensor]:
    tokenizer = ElmoTokenizer(max_characters_per_token=tiny_config.max_characters_per_token)
    sentences = [["The", "bank", "raised"], ["A"], ["Two", "banks"]]
    return dict(
        tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt").items()
    )


@pytest.mark.parametrize("seed", range(40))
def test_every_configuration_gives_what_pytorch_gives(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model = ElmoModel(draw_config(chance)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that clips are reached
    other = OrtElmoModel.from_model(model)
    batch, state = chance.randint(1, 5), None
    for tokens in (chance.choice([0, 3, 20]), 60):
        inputs = draw_batch(model.config, batch, tokens)
        expected = run(model, inputs, state)
        assert_close(run(other, inputs, state), expected, **TOLERANCE)
        state = expected[-1]


def test_sentences_without_words_and_empty_batches_are_computed(tiny_model: ElmoModel) -> None:
    width = tiny_model.config.max_characters_per_token
    other = OrtElmoModel.from_model(tiny_model)
    for shape in ((0, 3, width), (2, 0, width), (2, 4, width)):
        ids = {"input_ids": torch.zeros(shape, dtype=torch.long)}
        assert_close(run(other, ids), run(tiny_model, ids), **TOLERANCE)


@pytest.mark.parametrize(("steps", "rows"), [(2, 16), (5, 2), (1, 1)])
def test_few_steps_and_sentences_at_a_time_give_the_same(
    tiny_model: ElmoModel,
    inputs: dict[str, Tensor],
    steps: int,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = run(tiny_model, inputs)
    monkeypatch.setattr(ort_model, "MAX_CHUNK_STEPS", steps)
    monkeypatch.setattr(ort_model, "ROWS_AT_ONCE", rows)
    assert_close(run(OrtElmoModel.from_model(tiny_model), inputs), expected, **TOLERANCE)


def test_products_in_8_bits_are_near_float32_on_real_text() -> None:
    name = resolve_name(BUNDLED_NAME)
    sentences = [line.split() for line in TEXT.read_text(encoding="utf-8").splitlines()[:32]]
    inputs = ElmoTokenizer.from_pretrained(name)(
        sentences, is_split_into_words=True, padding=True, return_tensors="pt"
    )
    mask = inputs["attention_mask"].bool()
    exact, _, _, _ = run(OrtElmoModel.from_pretrained(name), inputs)
    rounded, _, _, _ = run(OrtElmoModel.from_pretrained(name, quantization="int8"), inputs)
    for one, other in zip(exact[1:], rounded[1:], strict=True):
        assert not torch.equal(one, other)
        assert F.cosine_similarity(one[mask], other[mask], dim=-1).mean() > MIN_COSINE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_folder_is_loaded_in_float32_whatever_its_dtype(
    tiny_model: ElmoModel, inputs: dict[str, Tensor], tmp_path: Path, dtype: torch.dtype
) -> None:
    tiny_model.to(dtype).save_pretrained(tmp_path)
    expected = run(tiny_model.float(), inputs)
    assert_close(run(OrtElmoModel.from_pretrained(tmp_path), inputs), expected, **TOLERANCE)


def test_copies_and_unpickled_models_give_the_same(
    tiny_model: ElmoModel, inputs: dict[str, Tensor]
) -> None:
    model = OrtElmoModel.from_model(tiny_model)
    expected = run(model, inputs)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_close(run(other, inputs), expected, rtol=0, atol=0)


def test_a_given_state_is_not_overwritten(tiny_model: ElmoModel) -> None:
    model = OrtElmoModel.from_model(tiny_model)
    state = model.zero_state(1, torch.zeros(0))
    model.run_bilm(torch.ones(3, tiny_model.config.projection_size), [1, 1, 1], state)
    assert not any(part.any() for pair in state if pair is not None for part in pair)


def test_the_configuration_is_that_of_the_weights_even_if_the_models_is_changed(
    tiny_model: ElmoModel,
) -> None:
    model = OrtElmoModel.from_model(tiny_model)
    tiny_model.config.cell_clip = 7.0
    assert model.config.cell_clip == 0.3


def test_threads_share_a_model(tiny_model: ElmoModel, inputs: dict[str, Tensor]) -> None:
    model = OrtElmoModel.from_model(tiny_model)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(model, inputs), range(16)))
    assert_close(results, [run(model, inputs)] * 16, rtol=0, atol=0)


def _send_sum(model: OrtElmoModel, inputs: dict[str, Tensor], connection: Any) -> None:
    torch.set_num_threads(1)
    connection.send(float(model(**inputs).elmo.sum()))


def test_threads_with_other_numbers_of_threads_keep_their_sessions(
    tiny_model: ElmoModel, inputs: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, counts = OrtElmoModel.from_model(tiny_model), []
    make = OrtElmoModel._make_sessions

    def count(self: OrtElmoModel, process: int, threads: int) -> object:
        counts.append(threads)
        return make(self, process, threads)

    monkeypatch.setattr(OrtElmoModel, "_make_sessions", count)
    for threads in (1, 2, 1, 2, 3, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        model(**inputs)
    assert counts == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_makes_its_own_sessions(
    tiny_model: ElmoModel, inputs: dict[str, Tensor]
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)  # so that the sessions have threads, which a fork leaves behind
    model = OrtElmoModel.from_model(tiny_model)
    expected = float(model(**inputs).elmo.sum())
    torch.set_num_threads(threads)
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_send_sum, args=(model, inputs, there))
    process.start()
    try:
        assert here.poll(60)
        assert here.recv() == pytest.approx(expected, abs=1e-4)
    finally:
        process.kill()
        process.join()


def test_a_file_that_changed_is_not_read_again(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    model = OrtElmoModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"has changed or is gone. Load the model again"):
        model.encode_boundaries()


def test_a_relative_folder_is_read_from_another_current_folder_too(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_folder.parent)
    model = OrtElmoModel.from_pretrained(tiny_folder.name)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert model.state_dict()


def change_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def change_quantization(folder: Path) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "x"}}
    path.write_text(json.dumps(fields))


def change_dtype(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: x.to(torch.int8) for name, x in load_file(path).items()}, path)


@pytest.mark.parametrize("change", [change_adapter, change_quantization, change_dtype])
def test_weights_that_are_not_plain_are_left_to_pytorchs_loader(
    change: Callable[[Path], None], tiny_folder: Path
) -> None:
    assert ort_model._find_weights(tiny_folder) is not None
    change(tiny_folder)
    assert ort_model._find_weights(tiny_folder) is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(tiny_model: ElmoModel, value: float) -> None:
    with torch.no_grad():
        tiny_model.forward_lstm.layers[1].bias[3] = value
    with pytest.raises(ValueError, match=r"Expected finite weights, got .* forward_lstm.layers.1"):
        OrtElmoModel.from_model(tiny_model)


def test_a_missing_tensor_is_refused_as_pytorch_refuses_it(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    weights = tiny_model.state_dict()
    del weights["forward_lstm.layers.0.bias"]
    tiny_model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ValueError, match=r"misses tensors: forward_lstm.layers.0.bias"):
        OrtElmoModel.from_pretrained(tmp_path)


def test_an_unknown_quantization_is_refused(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match=r"Expected quantization .* got 'int4'"):
        OrtElmoModel.from_model(tiny_model, quantization="int4")  # type: ignore[arg-type]


def test_models_on_other_devices_are_refused(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match="Expected an unmodified ElmoModel on the CPU"):
        OrtElmoModel.from_model(tiny_model.to("meta"))


def test_weights_that_change_before_the_sessions_are_made_are_refused(
    tiny_model: ElmoModel,
) -> None:
    made = OrtElmoModel.from_model(tiny_model)
    with torch.no_grad():
        tiny_model.forward_lstm.layers[0].bias.add_(1)
    with pytest.raises(ValueError, match="they have changed"):
        made.run_bilm(torch.zeros(1, tiny_model.config.projection_size), [1])


def test_a_step_of_a_fused_optimiser_is_noticed(tiny_model: ElmoModel) -> None:
    made = OrtElmoModel.from_model(tiny_model)
    for weight in tiny_model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.AdamW(tiny_model.parameters(), fused=True).step()
    with pytest.raises(ValueError, match="they have changed"):
        made.run_bilm(torch.zeros(1, tiny_model.config.projection_size), [1])
