"""Train static vectors (word2vec's skip-gram) on the biLM's own text, for models without ELMo.

pip install gensim
python examples/paper/train_vectors.py 'text/*.txt.gz' vectors.bin
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from gensim.models import Word2Vec
from tqdm import tqdm

from hf_elmo.text.text_reader import read_files


class Sentences:
    """Sentences of files; gensim can iterate over them repeatedly."""

    def __init__(self, patterns: list[str]) -> None:
        self.read = read_files(patterns)
        self.passes = 0

    def __iter__(self) -> Iterator[list[str]]:
        """Read all sentences: the first pass counts the words, each later pass is an epoch."""
        what = f"epoch {self.passes}" if self.passes else "counting words"
        self.passes += 1
        return iter(tqdm(self.read(None), desc=what, unit=" sentences"))


def main(
    files: Annotated[
        list[str], typer.Argument(help="Text files: one tokenised sentence per line.")
    ],
    output: Annotated[
        Path, typer.Argument(help="File to write in word2vec's format: binary (.bin) or text.")
    ],
    size: Annotated[int, typer.Option(min=1)] = 256,
    min_count: Annotated[int, typer.Option(help="Least number of uses of a word.", min=1)] = 5,
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    workers: Annotated[
        int, typer.Option(help="Threads; only one thread gives the same vectors each time.", min=1)
    ] = 2,
) -> None:
    """Train the vectors and write them."""
    model = Word2Vec(
        Sentences(files),
        vector_size=size,
        min_count=min_count,
        epochs=epochs,
        workers=workers,
        sg=1,
        seed=1,
    )
    is_binary = output.name.removesuffix(".gz").endswith(".bin")
    model.wv.save_word2vec_format(str(output), binary=is_binary)
    print(f"{len(model.wv):,} vectors of {size} numbers in {output}")


if __name__ == "__main__":
    typer.run(main)
