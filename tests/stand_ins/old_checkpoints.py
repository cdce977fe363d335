"""Tiny random biLMs as AllenNLP, ELMoForManyLangs and the NLPL repository store them.

bilm-tf's own HDF5 is in `bilm_tf`, TensorFlow's checkpoints are in `tensorflow_checkpoint`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from bilm_tf import Bilm, make_bilm, write_bilm

EMBEDDER = "text_field_embedder.token_embedder_elmo._elmo."  # of an AllenNLP task
CHARACTERS = ["b", "a", "天", "é", "\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
LEXICON = ["<oov>", "<bos>", "<eos>", "<pad>", "ab", "天", "\u3000", "éééééé"]
MAX_CHARACTERS = 8
META = {
    "algorithm": {"name": "Embeddings from Language Models (ELMo)", "id": 9},
    "contents": [{"filename": "model.hdf5", "format": "hdf5"}, {"filename": "options.json"}],
    "corpus": [
        {"description": "Norwegian Web as Corpus.", "language": "nor", "tokens": 1687000000}
    ],
    "creators": [{"name": "Somebody", "email": "some@body"}, {"name": "Another"}],
    "handle": "http://vectors.nlpl.eu/repository/20/000.zip",
}

# --- AllenNLP ---


def allennlp_weights(bilm: Bilm) -> dict[str, torch.Tensor]:
    """Arrange a biLM as AllenNLP's `_ElmoBiLm` does, read off its loading of bilm-tf's files."""
    variables, weights = bilm.variables, {}
    encoder = "_token_embedder"
    weights[f"{encoder}._char_embedding_weights"] = np.pad(
        variables["char_embed"], ((1, 0), (0, 0))
    )
    for i in range(len(bilm.options["char_cnn"]["filters"])):
        kernel = variables[f"CNN/W_cnn_{i}"].squeeze(0)
        weights[f"{encoder}.char_conv_{i}.weight"] = np.transpose(kernel, (2, 1, 0))
        weights[f"{encoder}.char_conv_{i}.bias"] = variables[f"CNN/b_cnn_{i}"]
    for k in range(bilm.options["char_cnn"]["n_highway"]):
        theirs, ours = f"CNN_high_{k}", f"{encoder}._highways._layers.{k}"
        matrices = [variables[f"{theirs}/W_transform"].T, -variables[f"{theirs}/W_carry"].T]
        biases = [variables[f"{theirs}/b_transform"], -variables[f"{theirs}/b_carry"]]
        weights[f"{ours}.weight"] = np.concatenate(matrices)
        weights[f"{ours}.bias"] = np.concatenate(biases)
    weights[f"{encoder}._projection.weight"] = variables["CNN_proj/W_proj"].T
    weights[f"{encoder}._projection.bias"] = variables["CNN_proj/b_proj"]
    size = bilm.options["lstm"]["projection_dim"]
    for number, direction in enumerate(("forward", "backward")):
        for layer in range(bilm.options["lstm"]["n_layers"]):
            theirs = f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            ours = f"_elmo_lstm.{direction}_layer_{layer}"
            i, j, f, o = np.split(variables[f"{theirs}/W_0"].T, 4)
            both = np.concatenate([i, f, j, o])
            weights[f"{ours}.input_linearity.weight"] = both[:, :size]
            weights[f"{ours}.state_linearity.weight"] = both[:, size:]
            i, j, f, o = np.split(variables[f"{theirs}/B"], 4)
            weights[f"{ours}.state_linearity.bias"] = np.concatenate([i, f + 1, j, o])
            weights[f"{ours}.state_projection.weight"] = variables[f"{theirs}/W_P_0"].T
    return {name: torch.tensor(array) for name, array in weights.items()}


def mix_weights(number: int, values: list[float], gamma: float) -> dict[str, torch.Tensor]:
    weights = {f"scalar_mix_{number}.gamma": torch.tensor([float(gamma)])}
    for i, value in enumerate(values):
        weights[f"scalar_mix_{number}.scalar_parameters.{i}"] = torch.tensor([float(value)])
    return weights


def write_allennlp(
    folder: Path, bilm: Bilm, mixes: dict[str, torch.Tensor] | None = None, **embedder: Any
) -> Path:
    """Write an unpacked archive of a tagger."""
    folder.mkdir(exist_ok=True)
    elmo = {f"_elmo_lstm.{name}": tensor for name, tensor in allennlp_weights(bilm).items()}
    weights = {EMBEDDER + name: tensor for name, tensor in (elmo | (mixes or {})).items()}
    weights["tag_projection_layer._module.weight"] = torch.ones(3, 4)
    torch.save(weights, folder / "weights.th")
    embedders = {"elmo": {"options_file": "https://host/options.json", **embedder}}
    model = {"type": "crf_tagger", "text_field_embedder": {"token_embedders": embedders}}
    (folder / "config.json").write_text(json.dumps({"model": model}))
    (folder / "options.json").write_text(json.dumps(bilm.options))
    return folder


# --- ELMoForManyLangs ---


class ManyLangs(NamedTuple):
    """A random model: the biLM as bilm-tf has it, and the word vectors, if any."""

    bilm: Bilm
    words: np.ndarray | None


def make_many_langs(word_dim: int = 3, **settings: Any) -> ManyLangs:
    settings = {"cell_clip": 0.4, "proj_clip": 0.3, "num_highways": 2} | settings
    bilm = make_bilm(num_rows=len(CHARACTERS), max_characters=MAX_CHARACTERS, **settings)
    if not word_dim:
        return ManyLangs(bilm, None)
    random = np.random.default_rng(1)
    width = bilm.variables["CNN_proj/W_proj"].shape[0]
    weight = random.normal(size=(word_dim + width, 4)).astype(np.float32)
    bilm.variables["CNN_proj/W_proj"] = weight
    return ManyLangs(bilm, random.normal(size=(len(LEXICON), word_dim)).astype(np.float32))


def write_many_langs(folder: Path, model: ManyLangs) -> Path:
    folder.mkdir(exist_ok=True)
    weights = allennlp_weights(model.bilm)
    encoder = {
        name.removeprefix("_elmo_lstm."): weights.pop(name)
        for name in list(weights)
        if name.startswith("_elmo_lstm.")
    }
    table = weights.pop("_token_embedder._char_embedding_weights")
    tokens = {"char_emb_layer.embedding.weight": table[1:]}  # no row for "no token"
    for name, tensor in weights.items():
        short = name.removeprefix("_token_embedder.").replace("char_conv_", "convolutions.")
        tokens[short.replace("_highways", "highways").replace("_projection", "projection")] = tensor
    if model.words is not None:
        tokens["word_emb_layer.embedding.weight"] = torch.tensor(model.words)
        write_lexicon(folder / "word.dic", LEXICON)
    torch.save(tokens, folder / "token_embedder.pkl")
    torch.save(encoder, folder / "encoder.pkl")
    write_lexicon(folder / "char.dic", CHARACTERS)
    options = model.bilm.options
    settings = {
        "encoder": {"name": "elmo", **options["lstm"]},
        "token_embedder": {
            "name": "cnn",
            "activation": options["char_cnn"]["activation"],
            "max_characters_per_token": MAX_CHARACTERS,
        },
    }
    (folder / "cnn.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"config_path": "/users4/someone/configs/cnn.json"}')
    return folder


def write_lexicon(path: Path, entries: list[str]) -> None:
    lines = [f"{entry}\t{row}\n" for row, entry in enumerate(entries)]
    path.write_text("".join(lines), encoding="utf-8")


# --- The NLPL repository ---


def write_nlpl(folder: Path, bilm: Bilm, meta: dict[str, Any] | None = None) -> Path:
    write_bilm(folder, bilm).rename(folder / "model.hdf5")
    (folder / "meta.json").write_text(json.dumps(META if meta is None else meta))
    return folder
