"""TensorFlow 1 checkpoints and modules become models that compute the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bilm_tf import WORDS, Bilm, evaluate, make_bilm, run_model
from tensorflow_checkpoint import (
    module_variables,
    trained_variables,
    write_trained,
    write_variables,
)

from convert import ConversionError, convert_checkpoint
from convert.formats.bilm_hdf5 import open_checkpoint as open_hdf5
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
    with pytest.warns(UserWarning, match=r"relu, clips of 3, skip connections and 50"):
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


# --- Where it is found ---


def test_options_of_a_model_in_the_folder_above_are_not_taken(tmp_path: Path) -> None:
    bilm = make_bilm(cell_clip=3, proj_clip=3, max_characters=50)
    write_trained(tmp_path / "drawer" / "german", bilm)
    options = tmp_path / "drawer" / "german" / "options.json"
    options.rename(tmp_path / "drawer" / "options.json")
    with pytest.warns(UserWarning, match=r"relu, clips of 3, skip connections and 50"):
        convert_checkpoint(tmp_path / "drawer" / "german", tmp_path / "model")


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
    with pytest.raises(ConversionError, match=r"found model.ckpt-1, model.ckpt-2. Pass the .index"):
        convert_checkpoint(tmp_path, tmp_path / "model")


def test_data_without_index_is_refused(tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "model", {"x": np.ones(1, np.float32)})
    Path(f"{prefix}.index").unlink()
    with pytest.raises(ConversionError, match=r"found no .index file"):
        convert_checkpoint(f"{prefix}.data-00000-of-00001", tmp_path / "target")


# --- What is refused ---


def test_changed_number_is_noticed(tmp_path: Path) -> None:
    prefix = write_trained(tmp_path / "saved", make_bilm())
    path = Path(f"{prefix}.data-00000-of-00001")
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=r"lm/CNN/W_cnn_0 is damaged"):
        convert_checkpoint(prefix, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_another_model_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    names = {"bert/embeddings/word_embeddings": np.ones(4, np.float32)}
    prefix = write_variables(tmp_path / "bert_model.ckpt", names)
    with pytest.raises(ConversionError, match=r"expected a biLM.*found bert/embeddings/word_emb"):
        convert_checkpoint(prefix, tmp_path / "model")


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
