"""Format: folders of `save_pretrained`."""

import json
from pathlib import Path

import torch

import hf_elmo
from convert.checkpoint import Checkpoint, ConversionError, Mix, Sources, list_numbered, list_some
from hf_elmo import ElmoConfig, ElmoTokenizer
from hf_elmo.stored_model import is_of_bilm

NAME = "huggingface"
VOCABULARY_NAME, MIXES = "target_vocab.txt", "scalar_mixes.json"
# Files that only some models have.
OPTIONAL_FILES = ("char_vocab.json", "word_vocab.json", VOCABULARY_NAME, MIXES)
MIX = "features.scalar_mixes"


def recognises(path: Path) -> bool:
    """Recognise the folder of a model by its configuration."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return str(config["model_type"]).startswith(ElmoConfig.model_type)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def read_checkpoint(sources: Sources) -> Checkpoint:
    """Read a biLM, and its softmax if there is one. Of a head, read the biLM and the mixes."""
    folder = sources.checkpoint
    try:
        config = ElmoConfig.from_pretrained(folder)
        kind = getattr(hf_elmo, (config.architectures or ["ElmoModel"])[0])
        model = kind.from_pretrained(folder, dtype=torch.float32)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ConversionError(f"{folder}: expected a biLM: {error}") from error
    tensors = {name.removeprefix("elmo."): x for name, x in model.state_dict().items()}
    state = {name: x for name, x in tensors.items() if is_of_bilm(name)}
    if kind is hf_elmo.ElmoForPreTraining:
        state |= {name: x for name, x in tensors.items() if name.startswith("softmax.")}
    else:
        config.vocab_size = 0  # a model that was saved without its softmax keeps the number
    if (folder / "tokenizer_config.json").is_file():
        tokenizer = ElmoTokenizer.from_pretrained(folder)
    else:
        tokenizer = ElmoTokenizer.from_config(config)
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    checkpoint = Checkpoint(NAME, config, state, tokenizer, files)
    if "softmax.weight" in state and (folder / VOCABULARY_NAME).is_file():
        text = (folder / VOCABULARY_NAME).read_text(encoding="utf-8-sig")
        checkpoint.target_words = text.removesuffix("\n").split("\n")
    if (folder / MIXES).is_file():
        mixes = json.loads((folder / MIXES).read_text(encoding="utf-8"))
        checkpoint.mixes = {name: Mix(**mix) for name, mix in mixes.items()}
    if learned := _read_mixes(tensors, config):
        checkpoint.add_mixes(learned)
    others = [x for x in tensors if x not in state and "scalar_mixes." not in x]
    checkpoint.notes += [f"tensors {list_some(others)}"] if others else []
    if (folder / "README.md").is_file():
        checkpoint.notes.append("README.md: licence, language and origin")
    return checkpoint


def _read_mixes(tensors: dict[str, torch.Tensor], config: ElmoConfig) -> dict[str, Mix]:
    """Read the mixes of a head."""
    norm = config.mix_layer_norm != "none"
    names = [x.removesuffix(".gamma") for x in list_numbered(f"{MIX}.{{}}.gamma", tensors)]
    return {
        x: Mix(tensors[f"{x}.weights"].tolist(), tensors[f"{x}.gamma"].item(), norm) for x in names
    }
