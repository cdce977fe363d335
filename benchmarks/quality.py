"""What a biLM's layers know of parts of speech, in float32 and in reduced precision.

A linear probe, as in the paper (Peters et al. 2018, 5.3, Table 6), on open data; beside it, how far
layers in reduced precision are from float32. `examples/paper` has the probe of senses.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.inference.embedding import embed
from hf_elmo.onnx import OrtElmoModel

Array = npt.NDArray[Any]


def read_tagged(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Read words and universal part-of-speech tags from a gzipped CoNLL-U file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
            rows = [row for row in rows if row[0].isdigit()]  # no ranges, no empty nodes
            if rows:
                yield [row[1] for row in rows], [row[3] for row in rows]


def probe_tags(
    model: ElmoModel, tokenizer: ElmoTokenizer, folder: Path, num_sentences: int
) -> list[float]:
    """Train a linear probe for each layer; give its accuracy on the test part in percent."""
    parts = {}
    for part in ("train", "test"):
        (path,) = folder.glob(f"*-{part}.conllu.gz")
        sentences = list(read_tagged(path))[: num_sentences if part == "train" else None]
        layers = embed((words for words, _ in sentences), model, tokenizer, layers="all")
        features = np.concatenate(list(layers), axis=1)  # (layers, tokens, width)
        parts[part] = features, [tag for _, tags in sentences for tag in tags]
    (train, train_tags), (test, test_tags) = parts["train"], parts["test"]
    return [
        100 * fit_probe(x, train_tags).score(y, test_tags) for x, y in zip(train, test, strict=True)
    ]


def fit_probe(features: Array, tags: list[str]) -> Any:
    """Fit a multinomial logistic regression on standardised features."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200, tol=1e-3))
    return probe.fit(features, tags)


def compare_precisions(
    models: dict[str, ElmoModel], tokenizer: ElmoTokenizer, folder: Path
) -> Iterator[tuple[str, ...]]:
    """Compare words of the test part with those of the first model, layer by layer.

    Returns:
        Rows: precision, layer, mean and least cosine, largest error, mean size of a number.
    """
    (path,) = folder.glob("*-test.conllu.gz")
    words = [words for words, _ in read_tagged(path)]
    layers = {
        name: np.concatenate(list(embed(words, model, tokenizer, layers="all")), axis=1)
        for name, model in models.items()
    }
    expected = next(iter(layers.values()))  # (layers, tokens, width)
    lengths = np.linalg.norm(expected, axis=-1)
    for name, actual in list(layers.items())[1:]:
        products = (actual * expected).sum(axis=-1)
        cosines = products / (lengths * np.linalg.norm(actual, axis=-1))
        for number, cosine in enumerate(cosines):
            error = abs(actual[number] - expected[number]).max()
            size = abs(expected[number]).mean()
            numbers = f"{cosine.mean():.6f}", f"{cosine.min():.4f}", f"{error:.3f}", f"{size:.3f}"
            yield name, str(number), *numbers


def main(
    data: Annotated[Path, typer.Argument(help="Folder with ewt/.")],
    model: Annotated[str, typer.Option(help="Folder or name of a biLM.")] = BUNDLED_NAME,
    sentences: Annotated[int, typer.Option(help="Sentences that train the probe.")] = 12_544,
) -> None:
    """Print two tables in Markdown: part of speech and reduced precision, both by layer."""
    name = resolve_name(model)
    tokenizer = ElmoTokenizer.from_pretrained(name)
    trained = ElmoModel.from_pretrained(name)
    models = {
        "float32": trained,
        "bfloat16": ElmoModel.from_pretrained(name, dtype=torch.bfloat16),
        "int8": OrtElmoModel.from_pretrained(name, quantization="int8"),
    }
    torch.manual_seed(0)
    random = {"random weights": ElmoModel(trained.config).eval()}
    scores = [probe_tags(m, tokenizer, data / "ewt", sentences) for m in (models | random).values()]
    print(f"| layer | POS accuracy, {' | '.join(models | random)} |\n|---{'|---' * len(scores)}|")
    for number, row in enumerate(zip(*scores, strict=True)):
        print(f"| {number} | {' | '.join(f'{score:.2f}' for score in row)} |")
    print("\n| to float32 | layer | mean cosine | least | largest error | mean size |")
    print("|---|---|---|---|---|---|")
    for row in compare_precisions(models, tokenizer, data / "ewt"):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    typer.run(main)
