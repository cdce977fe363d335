"""Build the folder of the demo: its sources, the model, the collection and ONNX Runtime Web."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from collection import Array, Collection, read_collection
from spacy_data import find_entities, read_tokenizer_rules

from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.command_errors import report_errors, run_app
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.language_model.models import load_language_model, load_vocabulary
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.stored_model import load_config
from hf_elmo.tokenization_elmo import ElmoTokenizer

WEB = Path(__file__).with_name("web")
PACKAGE_NAME, LOCK_NAME = "package.json", "package-lock.json"
RUNTIME_FILES = {  # names in the package onnxruntime-web, and names in the page's folder
    "ort.wasm.bundle.min.mjs": "onnxruntime.js",  # some hosts serve .mjs with a wrong MIME type
    "ort-wasm-simd-threaded.mjs": "ort-wasm-simd-threaded.mjs",  # for Node.js, not for browsers
    "ort-wasm-simd-threaded.wasm": "ort-wasm-simd-threaded.wasm",
}
MAPPED_WORDS = ("bank", "play")


def write_demo(
    folder: Path,
    name: str,
    *,
    int8: bool = False,
    pipelines: Sequence[str] = (),
    runtime: Path | None = None,
) -> None:
    """Write the folder of the demo page completely or not at all.

    Args:
        folder: A folder that does not exist or is empty.
        name: Folder or name of a biLM that reads only the UTF-8 bytes of words.
        int8: Whether to store the weights of the LSTMs in 8 bits.
        pipelines: spaCy pipelines; the page shows the entities that they find.
        runtime: Folder of the npm package onnxruntime-web; None = install it by npm.

    Raises:
        FileExistsError: If the folder is not empty.
        FileNotFoundError: If the parent folder is missing, npm is needed and missing, or `runtime`
            lacks a file of the package.
        OSError: If npm fails, or there is no such model or pipeline.
        ValueError: If the model cannot be exported, or does not read words as bytes only.
    """
    from hf_elmo.onnx import export_onnx

    folder = folder.resolve()
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"Expected a folder {folder.parent}, found none. Create it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"Expected a new or empty folder, got {folder}. Choose another name or remove it."
        )
    model, tokenizer, vocabulary = _load(name)
    if tokenizer.characters != "bytes" or model.config.word_embedding_size:
        raise ValueError(f"Expected a biLM that reads bytes only, got {name}, which reads others.")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".demo-") as temporary:
        built = Path(temporary, "demo")
        ignored = shutil.ignore_patterns(LOCK_NAME)
        shutil.copytree(WEB, built, ignore=ignored, copy_function=shutil.copyfile)
        copy_runtime(runtime or install_runtime(Path(temporary)), built)
        collection = Collection(model, tokenizer, read_collection())
        (built / "collection.bin").write_bytes(collection.vectors.astype("<f4").tobytes())
        bilm = model if isinstance(model, ElmoModel) else model.elmo
        export_onnx(bilm, built / "model.onnx", quantization="int8" if int8 else None)
        data = make_data(model, collection, pipelines)
        data["model"] = Path(name).name
        if vocabulary is not None and isinstance(model, ElmoForPreTraining):
            data["guesses"] = _write_softmax(built / "softmax.bin", model, tokenizer, vocabulary)
        (built / "data.json").write_text(json.dumps(data), encoding="utf-8")
        if not folder.exists():
            built.rename(folder)
            return
        for path in built.iterdir():  # the folder may be the current one
            path.rename(folder / path.name)


def _load(
    name: str,
) -> tuple[ElmoModel | ElmoForPreTraining, ElmoTokenizer, TargetVocabulary | None]:
    """Load a model, with its softmax and target vocabulary if it has both."""
    name = resolve_name(name)
    config = load_config(name)
    if not isinstance(config, ElmoConfig):
        raise ValueError(f"Expected a biLM for the demo, got a model of type {config.model_type}.")
    if config.vocab_size and load_vocabulary(name) is not None:
        return load_language_model(name)
    return (
        ElmoModel.from_pretrained(name, dtype=torch.float32).eval(),
        ElmoTokenizer.from_pretrained(name),
        None,
    )


def copy_runtime(package: Path, folder: Path) -> None:
    """Copy the files of ONNX Runtime Web that the page loads.

    Args:
        package: Folder of the npm package onnxruntime-web.
        folder: Folder to write the files to.

    Raises:
        FileNotFoundError: If `package` lacks one of the files.
    """
    for source, target in RUNTIME_FILES.items():
        if not (package / "dist" / source).is_file():
            raise FileNotFoundError(
                f"Expected the npm package onnxruntime-web in {package}, found no dist/{source}."
            )
        shutil.copyfile(package / "dist" / source, folder / target)


def install_runtime(folder: Path) -> Path:
    """Install onnxruntime-web by npm, in the version of the lock file; return its folder."""
    package = json.loads((WEB / PACKAGE_NAME).read_text(encoding="utf-8"))
    version = package["dependencies"]["onnxruntime-web"]
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            f"Expected npm to install onnxruntime-web {version}, found none. Install Node.js. Or "
            f"run `npm pack onnxruntime-web@{version}` on another machine, unpack the archive, and "
            "give its folder: --onnxruntime-web package"
        )
    for name in (PACKAGE_NAME, LOCK_NAME):
        shutil.copyfile(WEB / name, folder / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0"]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if result.returncode:
        raise OSError(
            f"Expected npm to install onnxruntime-web {version}, got: {result.stderr[-1000:]}"
            "Give a copy of the package: --onnxruntime-web FOLDER"
        )
    return folder / "node_modules" / "onnxruntime-web"


def make_data(
    model: ElmoModel | ElmoForPreTraining, collection: Collection, pipelines: Sequence[str] = ()
) -> dict[str, Any]:
    """Collect the data that the page reads as JSON."""
    config = model.config
    maps = {word: collection.map_senses(word) for word in MAPPED_WORDS}
    return {
        "numLayers": len(collection.vectors),
        "width": config.hidden_size,
        "spelling": {
            "numCells": config.max_characters_per_token,
            "wordStart": config.word_start_char_id,
            "wordEnd": config.word_end_char_id,
            "padding": config.char_padding_id,
            "boundaries": {
                "<S>": config.sentence_start_char_id,
                "</S>": config.sentence_end_char_id,
            },
        },
        "tokenizer": read_tokenizer_rules(),
        "sentences": collection.sentences,
        "senses": [sense.partition(": ")[2] for sense in collection.senses],
        "places": collection.places,
        "maps": [
            {
                "word": word,
                "uses": found.uses,
                "origins": found.origins.tolist(),
                "axes": found.axes.swapaxes(1, 2).tolist(),
            }
            for word, found in maps.items()
        ],
        "entities": find_entities(pipelines),
    }


@torch.no_grad()
def _write_softmax(
    path: Path,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    vocabulary: TargetVocabulary,
) -> dict[str, Any]:
    """Write the softmax: scales and biases in float32, then weights in 8 bits, row by row.

    Returns:
        The target words, and the vectors that predict the first and the last word of a sentence.
    """
    weight: Array = model.softmax.weight.numpy()
    bias: Array = model.softmax.bias.numpy().copy()
    bias[vocabulary.special_ids] = -np.inf  # never suggested by the page
    scales = np.abs(weight).max(axis=1) / 127
    rounded = np.rint(weight / np.maximum(scales, 1e-30)[:, None]).astype(np.int8)
    with path.open("wb") as file:
        for array in (scales, bias):
            file.write(array.astype("<f4").tobytes())
        file.write(rounded.tobytes())
    empty = tokenizer([[]], is_split_into_words=True, return_tensors="pt")
    boundaries = model.elmo(**empty, keep_sentence_boundaries=True).last_hidden_state[0]
    size = model.config.projection_size
    directions = {"forward": boundaries[0, :size].tolist()}
    if model.config.bidirectional:
        directions["backward"] = boundaries[1, size:].tolist()
    return {"words": vocabulary.words, "boundaries": directions}


app = typer.Typer(add_completion=False)


@app.command()
@report_errors
def demo(
    folder: Annotated[Path, typer.Argument(help="Folder to write; new or empty.")],
    model: Annotated[str, typer.Option(help="A folder or a name on the Hub.")] = BUNDLED_NAME,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the LSTMs' weights in 8 bits: a smaller page.")
    ] = False,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(help="Trained spaCy pipeline; the page shows its entities. Repeatable."),
    ] = None,
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(help="Folder of the package onnxruntime-web; default: npm installs it."),
    ] = None,
) -> None:
    """Write a web page that runs the model in the browser, for any static host.

    \b
    python examples/demo/build_demo.py my-demo
    python -m http.server --bind 127.0.0.1 --directory my-demo

    For a word in a sentence, the page shows the nearest words by each layer and by a mix of layers,
    and the words that the model expects at that place. It also shows maps of senses. The page sends
    no data to any server. The command needs npm, or --onnxruntime-web.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    write_demo(folder, model, int8=int8, pipelines=pipeline or (), runtime=onnxruntime_web)
    size = sum(path.stat().st_size for path in folder.iterdir())
    typer.echo(f"Wrote {folder}, {size:,} bytes. To see it on this machine:", err=True)
    typer.echo(f"python -m http.server --bind 127.0.0.1 --directory {folder}", err=True)


if __name__ == "__main__":
    run_app(app)
