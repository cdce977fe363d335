"""Draw the figures of the site: `python docs/make_figures.py`; remake them after new weights.

Each is an SVG that follows the reader's choice of a light or a dark look.
"""

import os
import random
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bundled import resolve_name
from hf_elmo.inference.embedding import embed
from hf_elmo.language_model.typing_errors import misspell

sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))
from collection import Collection, read_collection

FIGURES = Path(__file__).with_name("figures")
MODEL = "elmo-mini-en"
LAYERS = ("layer 0: spelling", "layer 1", "layer 2")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.code { font-family: ui-monospace, monospace; font-weight: 600; }
.soft { fill: #59636e; }
.small { font-size: 11px; }
.page { fill: #ffffff; }
.room { fill: #f3f6fa; stroke: #8c959f; }
.outer { fill: none; stroke: #59636e; stroke-width: 1.5; }
.grid { stroke: #d1d9e0; }
.arrow { stroke: #59636e; stroke-width: 1.5; fill: none; marker-end: url(#tip); }
.tip, .a { fill: #59636e; }
.line { fill: none; stroke-width: 2.5; }
.c0 { fill: #59636e; } .c1 { fill: #0969da; } .c2 { fill: #bc4c00; }
.line.c0 { fill: none; stroke: #59636e; }
.line.c1 { fill: none; stroke: #0969da; stroke-dasharray: 8 3; }
.line.c2 { fill: none; stroke: #bc4c00; stroke-dasharray: 2 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .page { fill: #131416; }
  .room { fill: #1f242b; stroke: #6e7681; }
  .grid { stroke: #30363d; }
  .soft, .tip, .c0 { fill: #9ea7b3; }
  .outer, .arrow { stroke: #9ea7b3; }
  .c1 { fill: #58a6ff; } .c2 { fill: #f0883e; }
  .line.c0 { stroke: #9ea7b3; } .line.c1 { stroke: #58a6ff; } .line.c2 { stroke: #f0883e; }
}
"""


class Drawing:
    """An SVG that grows.

    Args:
        width, height: Its size in pixels.
        title: What it shows, for those who do not see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title)}</title>',
            f"<style>{STYLE}</style>",
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker>',
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        ]

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line; `y` is that of its base."""
        self._parts.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "room"
    ) -> None:
        """Draw a box; its first line is a name, the others say what is in it."""
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        for number, line in enumerate(lines):
            kind_of_line = "soft small" if number else "code"
            self.text(x + 12, y + 20 + 16 * number, line, kind_of_line)

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draw an arrow along points."""
        self._parts.append(f'<path class="arrow" d="M{" ".join(f"{x} {y}" for x, y in points)}"/>')

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line along points."""
        path = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="M{path}"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        """Draw a dot: round for `c1`, square for all others, so that no colour is needed."""
        shape = (
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
            if kind == "c1"
            else f'<rect class="{kind}" x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>'
        )
        self._parts.append(shape)

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def draw_house() -> Drawing:
    """Draw the packages and their imports."""
    d = Drawing(760, 560, "Packages of spacy-elmo and their imports")
    d.text(95, 28, "elmo-convert", "code small", "middle")
    d.text(380, 28, "python -m hf_elmo", "code small", "middle")
    d.text(665, 28, 'nlp.add_pipe("elmo")', "code small", "middle")
    for x in (95, 380, 665):
        d.arrow((x, 36), (x, 56))
    d.box(20, 58, 150, 260, "convert", kind="outer")
    for y, *lines in (
        (92, "fetch, source", "files and formats"),
        (148, "formats", "one for each format"),
        (204, "layout", "one common layout"),
        (260, "verification", "compare vectors"),
    ):
        d.box(32, y, 126, 46, *lines)
    d.box(210, 58, 340, 482, "hf_elmo", kind="outer")
    for x, y, width, *lines in (
        (224, 166, 150, "tasks", "the six task models"),
        (386, 166, 150, "pretraining", "training of a biLM"),
        (224, 240, 150, "training", "checkpoints"),
        (386, 240, 150, "language_model", "losses, perplexity"),
        (224, 314, 150, "corpus", "vectors of corpora"),
        (386, 314, 150, "inference, onnx", "batches; engines"),
        (224, 388, 312, "modeling_elmo, modeling_heads", "the network"),
        (224, 462, 312, "lstm", "time loops and matrix products"),
    ):
        d.box(x, y, width, 50, *lines)
    for start, x in ((142, 299), (142, 461), (216, 299), (216, 461)):
        d.arrow((x, start), (x, start + 23))
    for x in (299, 461):
        for start in (290, 364):
            d.arrow((x, start), (x, start + 23))
    d.arrow((380, 438), (380, 461))
    d.box(590, 58, 150, 260, "spacy_elmo", kind="outer")
    for y, *lines in (
        (92, "component", "doc.tensor"),
        (148, "listener", "one mix per task"),
        (204, "layer_cache", "cached layers"),
        (260, "similarity", "in context"),
    ):
        d.box(602, y, 126, 46, *lines)
    d.arrow((170, 190), (208, 190))
    d.arrow((590, 190), (552, 190))
    d.text(20, 350, "Arrows: “imports”.", "soft small")
    d.text(20, 368, "Nothing imports convert", "soft small")
    d.text(20, 384, "or spacy_elmo.", "soft small")
    return d


def draw_sentence() -> Drawing:
    """Draw the steps from a sentence to its vectors."""
    steps = (
        ("“The bank raised its rates .”", "", "words"),
        ("tokenization_elmo", "words → UTF-8 bytes → ids", "(batch, tokens, characters)"),
        ("word_cache", "encodes each distinct word once", "(words, characters)"),
        ("character encoder", "embedding, convolutions, highways, projection", "(words, P)"),
        ("packed_sentences", "add <S> and </S>; pack by time step, longest first", "(steps, P)"),
        ("lstm →    lstm ←", "left to right and right to left, layer by layer", "(steps, P) each"),
        ("unpacking", "restore padding, remove <S> and </S>", "(batch, tokens, 2P) × 3 layers"),
        ("scalar mix", "γ · Σ softmax(w)ⱼ · hⱼ", "(batch, tokens, 2P)"),
        ("doc.tensor, out.elmo", "or the mix of a task", ""),
    )  # fmt: skip
    height = 62
    d = Drawing(760, height * len(steps) + 14, "From a sentence to vectors")
    for number, (name, what, shape) in enumerate(steps):
        y = 14 + height * number
        d.box(20, y, 480, 42, kind="room")
        d.text(34, y + (18 if what else 26), name, "code")
        d.text(34, y + 34, what, "soft small")
        d.text(516, y + 26, shape, "code small")
        if number + 1 < len(steps):
            d.arrow((260, y + 42), (260, y + height - 1))
    return d


def draw_banks() -> Drawing:
    """Draw the uses of "bank" in the plane, layer by layer, by the bundled model."""
    name = resolve_name(MODEL)
    model, tokenizer = ElmoModel.from_pretrained(name).eval(), ElmoTokenizer.from_pretrained(name)
    collection = Collection(model, tokenizer, read_collection())
    found = collection.map_senses("bank")
    maps = (collection.vectors[:, found.uses] - found.origins[:, None]) @ found.axes
    rows = [collection.senses[collection.places[row][0]] for row in found.uses]
    names = [sense.removeprefix("bank: ") for sense in rows]
    d = Drawing(760, 290, "Uses of “bank” in the plane, one map a layer, by sense: river and money")
    senses = sorted(set(names), reverse=True)
    kinds = {sense: f"c{number + 1}" for number, sense in enumerate(senses)}
    for number, (title, points) in enumerate(zip(LAYERS, maps, strict=True)):
        left = 20 + 245 * number
        d.box(left, 40, 230, 230, kind="room")
        d.text(left + 4, 28, title, "code")
        for (x, y), sense in zip(points, names, strict=True):
            d.dot(left + 115 + 103 * x, 155 - 103 * y, kinds[sense])
    for number, sense in enumerate(senses):
        d.dot(600 + 75 * number, 23, kinds[sense])
        d.text(610 + 75 * number, 28, sense, "small")
    return d


def draw_robustness() -> Drawing:
    """Draw how far vectors move if a share of the words is misspelt, by the bundled model."""
    name = resolve_name(MODEL)
    model, tokenizer = ElmoModel.from_pretrained(name).eval(), ElmoTokenizer.from_pretrained(name)
    sentences = [words for _, words in read_collection()]
    clean = list(embed(sentences, model, tokenizer, layers="all"))
    curves: dict[bool, list[list[float]]] = {False: [], True: []}  # by whether a word is misspelt
    for share in SHARES:
        rng = random.Random(0)
        noisy = [[misspell(w, rng) if rng.random() < share else w for w in s] for s in sentences]
        cosines: dict[bool, list[list[float]]] = {False: [], True: []}
        for number, vectors in enumerate(embed(noisy, model, tokenizer, layers="all")):
            for place, (word, other) in enumerate(
                zip(sentences[number], noisy[number], strict=True)
            ):
                a, b = clean[number][:, place], vectors[:, place]
                norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
                cosines[word != other].append(((a * b).sum(axis=1) / norms).tolist())
        for is_misspelt, rows in cosines.items():
            if rows:
                curves[is_misspelt].append([100 * share, *np.mean(rows, axis=0).tolist()])
    d = Drawing(760, 320, "Cosine of words with themselves by the share of words misspelt")
    titles = ((False, "words spelt right"), (True, "misspelt words"))
    for number, (is_misspelt, title) in enumerate(titles):
        _draw_axes(d, 60 + 360 * number, title)
        for layer in range(3):
            points = [
                (60 + 360 * number + row[0] * 6, 260 - 220 * (row[1 + layer] - 0.4) / 0.6)
                for row in curves[is_misspelt]
            ]
            d.line(points, f"line c{layer}")
    for layer, title in enumerate(LAYERS):
        d.line([(190 + 160 * layer, 308), (215 + 160 * layer, 308)], f"line c{layer}")
        d.text(222 + 160 * layer, 312, title, "small")
    return d


def _draw_axes(d: Drawing, left: float, title: str) -> None:
    d.text(left, 26, title, "code")
    for tick in range(4, 11, 2):
        y = 260 - 220 * (tick / 10 - 0.4) / 0.6
        d.line([(left, y), (left + 300, y)], "grid")
        d.text(left - 8, y + 4, f"{tick / 10:.1f}", "soft small", "end")
    for share in SHARES:
        d.text(left + 600 * share, 278, f"{share:.0%}", "soft small", "middle")
    d.text(left + 300, 292, "of the words misspelt", "soft small", "end")


# By file name; those of the second group are computed by the bundled model.
DRAWN: dict[str, Callable[[], Drawing]] = {
    "house": draw_house,
    "sentence": draw_sentence,
}
COMPUTED: dict[str, Callable[[], Drawing]] = {"banks": draw_banks, "robustness": draw_robustness}


def main() -> None:
    """Draw all figures."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in {**DRAWN, **COMPUTED}.items():
        (FIGURES / f"{name}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
