"""Code beside the weights, for users who have transformers but not this package."""

import json
import shutil
from os import PathLike
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

# Classes that the Auto classes load with `trust_remote_code=True`. All heads are listed, because
# each head can load the biLM of any saved model.
MODEL_AUTO_MAP = {
    "AutoConfig": "configuration_elmo.ElmoConfig",
    "AutoModel": "modeling_elmo.ElmoModel",
    "AutoModelForPreTraining": "modeling_heads.ElmoForPreTraining",
    "AutoModelForSequenceClassification": "modeling_heads.ElmoForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_heads.ElmoForTokenClassification",
}
TOKENIZER_AUTO_MAP = {"AutoTokenizer": ["tokenization_elmo.ElmoTokenizer", None]}  # slow, fast
MODULES = ("modeling_heads.py", "tokenization_elmo.py")


def include_code(folder: str | PathLike[str]) -> None:
    """Add code to a saved model, tokenizer or both, so that they load without this package.

    Copies the needed modules into the folder and names them in its configuration files. With
    `trust_remote_code=True`, `AutoModel.from_pretrained(folder)`, the Auto classes of all heads,
    `AutoTokenizer` and `pipeline("token-classification", folder)` then find the modules. Call this
    function after the last save, because saving removes the modules' names.

    Args:
        folder: Folder that `save_pretrained` has written.

    Raises:
        ValueError: If there is neither a model nor a tokenizer in the folder, or if they are not
            those of an `ElmoModel` or one of its heads in `hf_elmo`, for example of a task model.
        FileExistsError: If the folder has a Python file with the name of a module, but with
            another first line.
    """
    folder = Path(folder)
    configurations = {
        folder / "config.json": MODEL_AUTO_MAP,
        folder / "tokenizer_config.json": TOKENIZER_AUTO_MAP,
    }
    found = {path: auto_map for path, auto_map in configurations.items() if path.exists()}
    if not found:
        raise ValueError(f"Expected a saved model or tokenizer in {str(folder)!r}, found none.")
    for path in found:
        about = json.loads(path.read_text(encoding="utf-8"))
        kind = about.get("model_type" if path.name == "config.json" else "tokenizer_class")
        if kind not in ("elmo", "ElmoTokenizer", None):
            raise ValueError(f"Expected a biLM and its tokenizer, got {kind} in {path}.")
    starts = [Path(__file__).with_name(module) for module in MODULES]
    sources = [path for one in starts for path in (one, *map(Path, get_relative_import_files(one)))]
    for path in sources:
        target = folder / path.name
        if target.exists() and _read_title(target) != _read_title(path):
            raise FileExistsError(
                f"Expected no {path.name} in {str(folder)!r}: it would be replaced. Save the model "
                "in a folder of its own."
            )
    for path in sources:
        shutil.copyfile(path, folder / path.name)
    for path, auto_map in found.items():
        configuration = json.loads(path.read_text(encoding="utf-8"))
        configuration["auto_map"] = auto_map
        text = json.dumps(configuration, indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


def _read_title(module: Path) -> bytes:
    """Return the first line; a copy of a module of this package has the same."""
    with module.open("rb") as file:
        return file.readline().rstrip()
