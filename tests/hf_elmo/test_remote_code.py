"""Folders that load without this package."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers.dynamic_module_utils import get_imports

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
    ElmoTokenizer,
    include_code,
)

SENTENCE = ["The", "bank", "raised", "its", "rates"]
ABSENT = ["hf_elmo", "spacy_elmo", "convert", "spacy", "h5py", "triton", "typer"]

HEADS: dict[str, type[ElmoPreTrainedModel]] = {
    "AutoModel": ElmoModel,
    "AutoModelForPreTraining": ElmoForPreTraining,
    "AutoModelForSequenceClassification": ElmoForSequenceClassification,
    "AutoModelForTokenClassification": ElmoForTokenClassification,
}

# Runs where none of these can be imported. Loads each head from its own folder, and from where it
# has saved itself; the others from the bare biLM's folder.
SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import transformers
from safetensors.torch import save_file

outputs = {}
for auto in HEADS:
    for folder in (auto, auto + "-again", "AutoModel"):
        load = {"pretrained_model_name_or_path": folder, "trust_remote_code": True}
        tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
        model = getattr(transformers, auto).from_pretrained(**load, vocab_size=7)
        batch = tokenizer([SENTENCE], is_split_into_words=True, return_tensors="pt")
        outputs[f"{auto} {folder}"] = model(**batch)[0].detach().contiguous()
        if folder == auto:
            model.save_pretrained(auto + "-again")
            tokenizer.save_pretrained(auto + "-again")
save_file(outputs, "outputs.safetensors")

tagger = transformers.pipeline(
    "token-classification", "AutoModelForTokenClassification", trust_remote_code=True, device="cpu"
)
assert len(tagger(" ".join(SENTENCE))) == len(SENTENCE)
again = "AutoModelForTokenClassification-again"
tagger = transformers.pipeline("token-classification", again, trust_remote_code=True, device="cpu")
assert len(tagger(" ".join(SENTENCE))) == len(SENTENCE)
"""


@pytest.mark.slow
def test_folders_with_code_load_without_the_package(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    batch = ElmoTokenizer()([SENTENCE], is_split_into_words=True, return_tensors="pt")
    expected = {}
    for auto, head in HEADS.items():
        model = head(ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7})).eval()
        model.save_pretrained(tmp_path / auto)
        ElmoTokenizer().save_pretrained(tmp_path / auto)
        include_code(tmp_path / auto)
        expected[auto] = model(**batch)[0]
    result = subprocess.run(
        [sys.executable, "-c", f"{ABSENT=}\n{SENTENCE=}\nHEADS = {list(HEADS)}\n{SCRIPT}"],
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = load_file(tmp_path / "outputs.safetensors")
    assert len(found) == 11
    for auto, output in expected.items():
        assert_close(found[f"{auto} {auto}"], output)
        assert_close(found[f"{auto} {auto}-again"], output)
        assert found[f"{auto} AutoModel"].shape == output.shape  # with a new head


def test_code_imports_nothing_that_transformers_does_not_bring(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path)
    include_code(tmp_path)
    brought = {"huggingface_hub", "numpy", "regex", "safetensors", "torch", "transformers"}
    for path in tmp_path.glob("*.py"):
        assert set(get_imports(path)) - set(sys.stdlib_module_names) <= brought, path.name


def test_code_is_found_by_transformers(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    include_code(tmp_path)
    for path in tmp_path.glob("*.py"):  # of relative imports, it follows `from .x import y` alone
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path.name
                assert node.module is not None, path.name
                assert (tmp_path / f"{node.module}.py").exists(), path.name


def test_code_leaves_the_order_of_labels(tiny_config: ElmoConfig, tmp_path: Path) -> None:
    tiny_config.num_labels = 12
    ElmoForTokenClassification(tiny_config).save_pretrained(tmp_path)
    include_code(tmp_path)
    assert list(ElmoConfig.from_pretrained(tmp_path).id2label) == list(range(12))


def test_saving_with_the_package_takes_the_names_of_the_code_away(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path / "model")
    ElmoTokenizer().save_pretrained(tmp_path / "model")
    include_code(tmp_path / "model")
    ElmoModel.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "again")
    ElmoTokenizer.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "again")
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" in json.loads((tmp_path / "model" / name).read_text())
        assert "auto_map" not in json.loads((tmp_path / "again" / name).read_text())


def test_code_replaces_earlier_code_but_no_other_file(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path)
    (tmp_path / "lstm.py").write_text("mine")
    with pytest.raises(FileExistsError, match=r"Expected no lstm\.py in .* a folder of its own"):
        include_code(tmp_path)
    assert [path.name for path in tmp_path.glob("*.py")] == ["lstm.py"]
    assert (tmp_path / "lstm.py").read_text() == "mine"
    (tmp_path / "lstm.py").unlink()
    include_code(tmp_path)
    current = (tmp_path / "lstm.py").read_text()
    (tmp_path / "lstm.py").write_text(current.splitlines()[0] + "\n# of an earlier version\n")
    include_code(tmp_path)
    assert (tmp_path / "lstm.py").read_text() == current


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a saved model or tokenizer in"):
        include_code(tmp_path)
    assert not list(tmp_path.iterdir())


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    for name, text in (
        ("config.json", '{"model_type": "elmo_ner"}'),
        ("tokenizer_config.json", '{"tokenizer_class": "BertTokenizer"}'),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="Expected a biLM and its tokenizer, got "):
            include_code(tmp_path)
        (tmp_path / name).unlink()
    assert not list(tmp_path.iterdir())
