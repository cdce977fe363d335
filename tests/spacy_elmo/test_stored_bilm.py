import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
from numpy.testing import assert_array_equal
from spacy.language import Language
from transformers.utils import logging

import hf_elmo
from hf_elmo import ElmoModel, ElmoTokenizer
from spacy_elmo.architecture import get_shim, make_elmo_model
from spacy_elmo.stored_bilm import LOADING, Bilm, ElmoShim, no_progress_bars

AddElmo = Callable[..., Any]


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_copied_model_keeps_its_precision(tiny_folder: Path) -> None:
    model = make_elmo_model(str(tiny_folder), dtype="bfloat16", quantization="int8").copy()
    shim = get_shim(model)
    assert (shim.load().model.dtype, shim.quantization) == (torch.bfloat16, "int8")


def test_a_copied_model_saves_the_source_of_its_weights_alone_like_the_first(
    tiny_folder: Path, tmp_path: Path
) -> None:
    shim = ElmoShim(str(tiny_folder))
    shim.store_weights = False
    shim.load()
    shim.copy().write(tmp_path / "copy")
    shim.write(tmp_path / "first")
    first, copied = (tmp_path / name / "source.json" for name in ("first", "copy"))
    assert copied.read_text() == first.read_text()


def test_a_pickled_model_has_no_weights_if_they_are_not_stored(tiny_folder: Path) -> None:
    shim = ElmoShim(str(tiny_folder))
    shim.store_weights = False
    shim.load()
    pickled = pickle.dumps(shim)
    assert len(pickled) < (tiny_folder / "model.safetensors").stat().st_size / 2
    assert pickle.loads(pickled).load().model.config.hidden_size == 16


def test_a_model_of_half_precision_is_trained_in_float32(
    add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel
) -> None:
    tiny_model.half().save_pretrained(tiny_folder)
    elmo = add_elmo(frozen=False)
    elmo.initialize(lambda: [])
    assert get_shim(elmo.model).load().model.dtype == torch.float32


def test_vectors_are_new_after_an_optimizer_has_written_into_the_weights(
    nlp: Language, tiny_folder: Path
) -> None:
    def step(_: Any, weights: Any, gradient: Any) -> tuple[Any, Any]:
        weights += gradient
        return weights, gradient

    model = make_elmo_model(str(tiny_folder))
    docs = [nlp.make_doc("The bank")]
    before = model.predict(docs)[0].layers
    weight = get_shim(model).load().model.token_encoder.projection.weight
    weight.grad = torch.zeros_like(weight)
    weight.grad[3] = 1.0  # not at an end of the weight, where each change is noticed
    get_shim(model).finish_update(step)
    changed = (model.predict(docs)[0].layers[0] != before[0]).any(axis=0)
    assert changed.nonzero()[0].tolist() == [3, 11]  # in both copies of the word vectors
    assert weight.grad is None


def test_missing_bundled_model_tells_how_to_name_one(
    nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.bundled.__file__", "/nowhere/__init__.py")
    nlp.add_pipe("elmo")
    with pytest.raises(FileNotFoundError, match="Name a model's folder"):
        nlp("The bank")


def test_unknown_name_is_an_error_that_says_what_to_do(
    nlp: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    nlp.add_pipe("elmo", config={"model": {"name": str(tmp_path / "absent")}})
    with pytest.raises(OSError, match=r"Found no ELMo model .*absent.*`elmo-convert`"):
        nlp("The bank")


def test_all_files_are_those_of_the_named_revision(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    for kind in ("ElmoConfig.get_config_dict", "ElmoModel.from_pretrained",
                 "ElmoTokenizer.from_pretrained"):  # fmt: skip
        load = attrgetter(kind)(hf_elmo)

        def record(*name: Any, load: Any = load, kind: str = kind, **options: Any) -> Any:
            asked.append((kind, options["revision"]))
            return load(*name, **options)

        monkeypatch.setattr(f"hf_elmo.{kind}", record)
    ElmoShim(str(tiny_folder), revision="v1").load()
    assert len({kind for kind, _ in asked}) == 3
    assert {revision for _, revision in asked} == {"v1"}


def test_progress_bars_that_the_user_has_hidden_stay_hidden() -> None:
    logging.disable_progress_bar()
    try:
        with no_progress_bars():
            pass
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()


def test_another_kind_of_model_is_an_error_that_names_it(nlp: Language, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    nlp.add_pipe("elmo", config={"model": {"name": str(tmp_path)}})
    with pytest.raises(ValueError, match=r"Expected an ELMo model, got .* of type 'bert'"):
        nlp("The bank")


def test_saving_a_pipeline_again_keeps_other_files(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path
) -> None:
    elmo = add_elmo()
    saved = tmp_path / "elmo"
    folder, backup = saved / "model", saved / "model.old"
    others = ("README.md", "model-old.safetensors", "notes/a.txt")
    for mine in (*(folder / name for name in others), backup / "model.safetensors"):
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")
    (folder / "link").symlink_to("notes")
    (folder / "model-00001-of-00002.safetensors").write_text("of an earlier save")
    for _ in range(2):
        elmo.to_disk(saved)
    assert (folder / "link").is_symlink()
    names = {
        str(path.relative_to(saved)) for path in saved.glob("model*/**/*") if not path.is_dir()
    }
    assert names == {
        *(f"model/{name}" for name in others),
        "model.old/model.safetensors",
        *("model/config.json", "model/model.safetensors", "model/tokenizer_config.json"),
    }


def test_files_that_a_killed_save_put_aside_come_back(add_elmo: AddElmo, tmp_path: Path) -> None:
    elmo = add_elmo()
    elmo.to_disk(tmp_path / "elmo")
    folder = tmp_path / "elmo" / "model"
    (folder / "README.md").write_text("mine")
    folder.rename(folder.with_name(".model.old"))
    folder.with_name(".model.partial").mkdir()
    elmo.to_disk(tmp_path / "elmo")
    assert (folder / "README.md").read_text() == "mine"
    assert {path.name for path in (tmp_path / "elmo").iterdir()} == {"model", "vocab"}


def test_a_link_to_a_shared_bilm_is_replaced_and_the_shared_bilm_stays(
    add_elmo: AddElmo, tmp_path: Path
) -> None:
    elmo = add_elmo()
    elmo.to_disk(tmp_path / "elmo")
    folder, shared = tmp_path / "elmo" / "model", tmp_path / "shared"
    folder.rename(shared)
    folder.symlink_to(shared)
    before = {path.name: path.stat().st_mtime_ns for path in shared.iterdir()}
    for _ in range(2):
        elmo.to_disk(tmp_path / "elmo")
    assert [path.name for path in folder.parent.glob("*model*")] == ["model"]
    assert not folder.is_symlink()
    assert {path.name: path.stat().st_mtime_ns for path in shared.iterdir()} == before
    shutil.rmtree(folder)
    folder.symlink_to("missing")
    elmo.to_disk(tmp_path / "elmo")
    assert not folder.is_symlink()


def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(
    add_elmo: AddElmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = get_shim(add_elmo().model)
    monkeypatch.setattr("spacy_elmo.stored_bilm.limit_fork_threads", lambda: None)
    thread = threading.Thread(target=shim.load, daemon=True)
    with LOADING[os.getpid()]:  # of a thread that loads a model
        monkeypatch.setattr("os.getpid", lambda: -1)
        thread.start()
        thread.join(60)
        assert shim._bilm is not None


def test_stored_weights_are_what_from_pretrained_reads(
    nlp: Language, add_elmo: AddElmo, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    add_elmo()
    nlp.to_disk(tmp_path / "pipeline")
    folder = tmp_path / "pipeline" / "elmo" / "model"
    stored = ElmoModel.from_pretrained(folder).state_dict()
    for name, tensor in tiny_model.state_dict().items():
        torch.testing.assert_close(stored[name], tensor, rtol=0, atol=0)
    assert ElmoTokenizer.from_pretrained(folder).max_characters_per_token == 50


def test_changed_weights_are_an_error_where_they_are_not_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    with torch.no_grad():
        tiny_model.token_encoder.projection.weight.add_(1)
    tiny_model.save_pretrained(tiny_folder)
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_a_changed_configuration_is_an_error_where_weights_are_not_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tmp_path: Path
) -> None:
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    config = json.loads((tiny_folder / "config.json").read_text())
    (tiny_folder / "config.json").write_text(json.dumps(config | {"mix_gamma": 3.0}))
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_a_changed_tokenizer_is_an_error_where_weights_are_not_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tmp_path: Path
) -> None:
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    ElmoTokenizer(map_boundary_words=False).save_pretrained(tiny_folder)
    with pytest.raises(ValueError, match=r"has changed since .* expected tokenizer"):
        spacy.load(tmp_path / "pipeline")


def test_a_source_does_not_replace_the_weights_that_it_names(tiny_folder: Path) -> None:
    shim = ElmoShim(str(tiny_folder))
    shim.store_weights = False
    before = {path.name: path.read_bytes() for path in tiny_folder.iterdir()}
    with pytest.raises(ValueError, match="has the weights themselves"):
        shim.write(tiny_folder)
    assert {path.name: path.read_bytes() for path in tiny_folder.iterdir()} == before


def test_changed_weights_of_pytorch_are_an_error_where_they_are_not_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    (tiny_folder / "model.safetensors").unlink()
    torch.save(tiny_model.state_dict(), tiny_folder / "pytorch_model.bin")
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    weights = {name: weight / 2 for name, weight in tiny_model.state_dict().items()}
    torch.save(weights, tiny_folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_weights_of_a_saved_pipeline_must_be_stored_again(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path
) -> None:
    add_elmo()
    nlp.to_disk(tmp_path / "pipeline")
    config = {"components": {"elmo": {"store_weights": False}}}
    loaded = spacy.load(tmp_path / "pipeline", config=config)
    with pytest.raises(ValueError, match="Expected store_weights = true: this biLM was read from"):
        loaded.to_disk(tmp_path / "other")


@pytest.mark.parametrize("is_gone", [True, False])
def test_weights_that_changed_since_they_were_read_must_be_stored(
    is_gone: bool,
    nlp: Language,
    add_elmo: AddElmo,
    tiny_folder: Path,
    tiny_model: ElmoModel,
    tmp_path: Path,
) -> None:
    add_elmo(store_weights=False)
    nlp("The bank")
    if is_gone:
        tiny_folder.rename(tmp_path / "elsewhere")
    else:
        with torch.no_grad():
            tiny_model.token_encoder.projection.weight.add_(1)
        tiny_model.save_pretrained(tiny_folder)
    with pytest.raises(ValueError, match="has changed, or is gone, since it was read"):
        nlp.to_disk(tmp_path / "pipeline")


def test_moved_weights_are_found_where_the_configuration_says(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tmp_path: Path
) -> None:
    add_elmo(store_weights=False)
    expected = nlp("The bank").tensor
    nlp.to_disk(tmp_path / "pipeline")
    tiny_folder.rename(tmp_path / "elsewhere")
    config = {"components": {"elmo": {"model": {"name": str(tmp_path / "elsewhere")}}}}
    loaded = spacy.load(tmp_path / "pipeline", config=config)
    assert_array_equal(loaded("The bank").tensor, expected)


def test_weights_in_a_relative_folder_are_found_from_another_folder(
    nlp: Language, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_folder.parent)
    config = {"model": {"name": tiny_folder.name}, "store_weights": False}
    nlp.add_pipe("elmo", config=config)
    expected = nlp("The bank").tensor
    nlp.to_disk(tmp_path / "pipeline")
    monkeypatch.chdir(tmp_path / "pipeline")
    assert_array_equal(spacy.load(tmp_path / "pipeline")("The bank").tensor, expected)


def test_weights_of_the_hub_keep_their_source_when_a_pipeline_is_saved_again(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"name": "org/elmo", "revision": "0123abc"}
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "source.json").write_text(json.dumps(source))
    asked = []

    def load(shim: ElmoShim, *name: str) -> Bilm:
        asked.append(name)
        return Bilm(ElmoModel.from_pretrained(tiny_folder), ElmoTokenizer())

    monkeypatch.setattr(ElmoShim, "_load_pretrained", load)
    shim = ElmoShim("elsewhere")
    shim.store_weights = False
    shim.read(tmp_path / "saved")
    shim.write(tmp_path / "again")
    assert asked == [("org/elmo", "0123abc")] == [(shim.name, shim.revision)]
    assert json.loads((tmp_path / "again" / "source.json").read_text()) == source


def test_sharded_weights_need_not_be_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    (tiny_folder / "model.safetensors").unlink()
    tiny_model.save_pretrained(tiny_folder, max_shard_size="5KB")
    assert len(list(tiny_folder.glob("*.safetensors"))) > 1
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    assert spacy.load(tmp_path / "pipeline")("The bank").tensor.shape == (2, 16)
    with torch.no_grad():
        tiny_model.token_encoder.projection.weight.add_(1)
    tiny_model.save_pretrained(tiny_folder, max_shard_size="5KB")
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_misspelt_name_is_refused_without_asking_the_hub(
    nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.ElmoConfig.get_config_dict", interrupt)
    nlp.add_pipe("elmo", config={"model": {"name": "elmo-mini"}})
    with pytest.raises(OSError, match=r"no ELMo model 'elmo-mini'. Set .* to 'elmo-mini-en'"):
        nlp("The bank")


# Killed while it saves


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "event",
    ["hf_elmo.ElmoModel.save_pretrained", "hf_elmo.ElmoTokenizer.save_pretrained",
     "pathlib.Path.rename", "spacy_elmo.stored_bilm.shutil.rmtree"],
)  # fmt: skip
def test_killed_save_leaves_a_whole_model_or_says_what_happened(
    nlp: Language,
    add_elmo: AddElmo,
    tmp_path: Path,
    event: str,
    is_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_elmo()
    tensor = nlp("The bank").tensor
    nlp.to_disk(tmp_path / "pipeline")
    if is_first:
        shutil.rmtree(tmp_path / "pipeline" / "elmo" / "model")
    with monkeypatch.context() as patch:
        patch.setattr(event, interrupt)
        with pytest.raises(KeyboardInterrupt):
            nlp.to_disk(tmp_path / "pipeline")
    if is_first:
        with pytest.raises(FileNotFoundError, match="was not saved to its end"):
            spacy.load(tmp_path / "pipeline")
    else:
        assert_array_equal(spacy.load(tmp_path / "pipeline")("The bank").tensor, tensor)
    nlp.to_disk(tmp_path / "pipeline")
    assert [path.name for path in (tmp_path / "pipeline" / "elmo").iterdir()] == ["model"]
