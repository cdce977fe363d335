"""Folders of ELMoForManyLangs become models that compute the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bilm_tf import encode_cells, run_bilm, run_model
from old_checkpoints import (
    CHARACTERS,
    LEXICON,
    MAX_CHARACTERS,
    ManyLangs,
    make_many_langs,
    write_many_langs,
)

from convert import ConversionError, convert_checkpoint
from convert.formats.many_langs import read_lexicon
from hf_elmo import ElmoModel, ElmoTokenizer

# Both programs compute in float32; the original differs from float64 by as much.
TOLERANCE = {"atol": 1e-5, "rtol": 0.0}
# Known to both lexicons, to one, to none; cut; empty; special words as text.
SENTENCE = ["ab", "ba", "天天", "zz", "ééééééééé", "", "\u3000", "<bos>", "<eos>", "<pad>"]


def evaluate(model: ManyLangs, words: list[str]) -> np.ndarray:
    """Compute the layers in float64, spelling words as frontend.py, `create_one_batch`, does."""
    weights = {name: a.astype(np.float64) for name, a in model.bilm.variables.items()}
    vectors = []
    for word in ["<bos>", *(word[: MAX_CHARACTERS - 2] for word in words), "<eos>"]:
        spelled = [word] if word in ("<bos>", "<eos>") else list(word)
        cells = ["<eow>", *spelled, "<bow>"]  # the wrong way round, as there
        cells += ["<pad>"] * (MAX_CHARACTERS - len(cells))
        rows = [CHARACTERS.index(cell if cell in CHARACTERS else "<oov>") for cell in cells]
        vector = encode_cells(model.bilm, weights, rows)
        if model.words is not None:
            row = LEXICON.index(word if word in LEXICON else "<oov>")
            vector = np.concatenate([model.words[row].astype(np.float64), vector])
        vectors.append(vector @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"])
    return run_bilm(model.bilm, weights, np.stack(vectors))


VARIANTS: dict[str, dict[str, Any]] = {
    "characters and words": {},
    "characters": {"word_dim": 0},
    "one layer": {"num_layers": 1},
    "tanh": {"activation": "tanh"},
    "no highways": {"num_highways": 0},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_converted_model_computes_what_elmo_for_many_langs_does(
    variant: dict[str, Any], tmp_path: Path
) -> None:
    model = make_many_langs(**variant)
    convert_checkpoint(write_many_langs(tmp_path / "source", model), tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(model, SENTENCE), **TOLERANCE)


def test_lexicons_are_saved_with_the_tokenizer(tmp_path: Path) -> None:
    convert_checkpoint(write_many_langs(tmp_path / "source", make_many_langs()), tmp_path / "model")
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    assert (tokenizer.char_vocab, tokenizer.word_vocab) == (CHARACTERS, LEXICON)
    assert tokenizer.unknown == "<oov>"


def test_words_alone_are_read(tmp_path: Path) -> None:
    model = make_many_langs()
    folder = write_many_langs(tmp_path / "source", model)
    tokens = torch.load(folder / "token_embedder.pkl", weights_only=True)
    vectors = tokens["word_emb_layer.embedding.weight"]
    projection = {f"projection.{name}": tokens[f"projection.{name}"] for name in ("weight", "bias")}
    projection["projection.weight"] = projection["projection.weight"][:, : vectors.shape[1]]
    torch.save(
        {"word_emb_layer.embedding.weight": vectors, **projection}, folder / "token_embedder.pkl"
    )
    (folder / "char.dic").unlink()
    convert_checkpoint(folder, tmp_path / "model")

    weights = {name: a.astype(np.float64) for name, a in model.bilm.variables.items()}
    table = vectors.double().numpy() @ weights["CNN_proj/W_proj"][: vectors.shape[1]]
    rows = [
        LEXICON.index(word if word in LEXICON else "<oov>")
        for word in ["<bos>", *SENTENCE, "<eos>"]
    ]
    expected = run_bilm(model.bilm, weights, (table + weights["CNN_proj/b_proj"])[rows])
    np.testing.assert_allclose(run_model(tmp_path / "model", SENTENCE), expected, **TOLERANCE)


# --- Settings ---


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ('{"config_path": "/users4/someone/configs/cnn.json"}', "cnn.json"),
        ('{"config_path": "configs/cnn.json"}', "configs/cnn.json"),
        (json.dumps({"config_path": r"C:\elmo\configs\cnn.json"}), "cnn.json"),
        (None, "config.json"),  # the settings themselves
    ],
)
def test_settings_are_found(config: str | None, place: str, tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs(activation="tanh"))
    (folder / "configs").mkdir()
    (folder / "cnn.json").rename(folder / place)
    if config is not None:
        (folder / "config.json").write_text(config)
    assert convert_checkpoint(folder, tmp_path / "model").config.char_activation == "tanh"


def test_settings_can_be_named(tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs(activation="tanh"))
    path = (folder / "cnn.json").rename(tmp_path / "cnn.json")
    conversion = convert_checkpoint(folder, tmp_path / "model", options=path)
    assert conversion.config.char_activation == "tanh"


def test_settings_of_published_models_are_known(tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    path = "/users4/conll18st/elmo/configs/cnn_50_100_512_4096_sample.json"
    (folder / "config.json").write_text(json.dumps({"config_path": path}))
    config = convert_checkpoint(folder, tmp_path / "model").config  # a warning would fail the test
    assert (config.cell_clip, config.projection_clip, config.char_activation) == (3, 3, "relu")
    assert config.max_characters_per_token == 50


@pytest.mark.parametrize(
    "config",
    [None, '{"config_path": "lost.json"}', "{}", json.dumps({"config_path": "x" * 1000})],
    ids=["no file", "lost", "no name", "no name of a file"],
)
def test_settings_that_are_nowhere_are_guessed(config: str | None, tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config)
    with pytest.warns(UserWarning, match="relu, clips of 3, skip connections and 50"):
        convert_checkpoint(folder, tmp_path / "model")


# --- Lexicons ---


def test_lexicon_is_read_as_the_program_does(tmp_path: Path) -> None:
    path = tmp_path / "char.dic"
    path.write_text("a\t0\r\n\u3000\t1\n b\t2 \na\t3\n", encoding="utf-8")
    assert read_lexicon(path, 4) == {"a": 3, "\u3000": 1, "b": 2}


def test_a_row_without_entry_keeps_its_place(tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    lines = (folder / "word.dic").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "word.dic").write_text("".join(lines[:4] + lines[5:]), encoding="utf-8")
    convert_checkpoint(folder, tmp_path / "model")
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer([["ab", "天"]], is_split_into_words=True)["word_input_ids"][0].tolist() == [
        1,
        6,
    ]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("a\tb\t1", "expected a token, a tab and a row from 0 to 10, got"),
        ("a\t11", "expected a token, a tab and a row from 0 to 10, got"),
        ("a\t-1", "expected a token, a tab and a row from 0 to 10, got"),
        ("a\t99999999999999999999", "expected a token, a tab and a row from 0 to 10, got"),
        ("a", "line 12: expected a token, a tab"),
        ("", "line 12: expected a token, a tab"),
    ],
)
def test_broken_lexicon_is_refused(line: str, error: str, tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    with (folder / "char.dic").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(ConversionError, match=error):
        convert_checkpoint(folder, tmp_path / "model")


@pytest.mark.parametrize(("name", "entry"), [("char.dic", "<bow>"), ("word.dic", "<oov>")])
def test_lexicon_without_a_special_entry_is_refused(name: str, entry: str, tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).write_text(text.replace(entry, "something"), encoding="utf-8")
    with pytest.raises(ConversionError, match=rf"{name}: expected {entry} in it"):
        convert_checkpoint(folder, tmp_path / "model")


def test_lexicon_in_another_encoding_is_refused(tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    (folder / "word.dic").write_bytes("Straße\t0\n".encode("latin-1"))
    with pytest.raises(ConversionError, match=r"word.dic: expected UTF-8, got"):
        convert_checkpoint(folder, tmp_path / "model")


def test_lexicon_beyond_all_bounds_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "word.dic").open("wb") as file:
        file.truncate(1 << 30)  # a hole
    error = "word.dic: expected a lexicon of at most 268,435,456 bytes, got 1,073,741,824"
    with pytest.raises(ConversionError, match=error):
        read_lexicon(tmp_path / "word.dic", 4)


# --- What is refused ---


@pytest.mark.parametrize("name", ["encoder.pkl", "token_embedder.pkl", "char.dic", "word.dic"])
def test_missing_file_is_named(name: str, tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    (folder / name).unlink()
    with pytest.raises(ConversionError, match=rf"source: expected {name} in it, found none"):
        convert_checkpoint(folder, tmp_path / "model")


def test_words_spelled_by_an_lstm_are_refused(tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    torch.save({"char_lstm.weight_ih_l0": torch.ones(2, 2)}, folder / "token_embedder.pkl")
    with pytest.raises(ConversionError, match="found a character LSTM"):
        convert_checkpoint(folder, tmp_path / "model")


def test_encoder_that_is_no_elmo_is_refused(tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    torch.save({"encoder_0.weight_ih_l0": torch.ones(2, 2)}, folder / "encoder.pkl")
    with pytest.raises(ConversionError, match=r"expected LSTM weights forward_layer_0"):
        convert_checkpoint(folder, tmp_path / "model")


# --- The original program ---


@pytest.mark.parametrize("name", ["char", "wordchar"])
def test_activations_are_those_of_the_program(name: str, oracle: Path, tmp_path: Path) -> None:
    convert_checkpoint(oracle / f"models/many_langs_{name}", tmp_path / "model")
    model = ElmoModel.from_pretrained(tmp_path / "model").eval()
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    text = (oracle / "expected/many_langs_sentences.json").read_text(encoding="utf-8")
    sentences = json.loads(text)
    state = None
    with np.load(oracle / f"expected/many_langs_{name}.npz") as stored:
        for batch, keys in (("s1", ["s1"]), ("s2", ["s2_stateful", "s2_fresh"])):
            words = sentences[batch]
            # The state goes from row to row of batches that are sorted by length.
            order = sorted(range(len(words)), key=lambda i: -len(words[i]))
            inputs = tokenizer(
                [words[i] for i in order],
                is_split_into_words=True,
                padding=True,
                return_tensors="pt",
            )
            for key in keys:
                with torch.no_grad():
                    outputs = model(
                        **inputs,
                        state=None if key == "s2_fresh" else state,
                        output_hidden_states=True,
                    )
                for row, i in enumerate(order):
                    got = torch.stack(outputs.hidden_states)[:, row, : len(words[i])]
                    np.testing.assert_allclose(got.numpy(), stored[f"{key}/{i}"], **TOLERANCE)
                state = outputs.state
