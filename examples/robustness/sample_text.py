"""Sample the training text of all encoders: equally many words of each source, in random order.

python examples/robustness/sample_text.py 'books/*.xz' 'modern/*.xz' --output train.txt
"""

import random
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import typer

from hf_elmo.text.text_reader import read_files


def main(
    sources: Annotated[list[str], typer.Argument(help="A pattern of files for each source.")],
    output: Annotated[Path, typer.Option(help="Text file to write.")],
    words: Annotated[int, typer.Option(help="Words of all sources together.")] = 4_000_000,
) -> None:
    """Write random sentences of each source, up to its share of the words."""
    lines: list[str] = []
    for source in sources:
        sentences = [*read_files([source])(None)]
        random.Random(0).shuffle(sentences)
        ends = accumulate(map(len, sentences))
        share = words / len(sources)
        taken = [x for x, end in zip(sentences, ends, strict=True) if end - len(x) < share]
        lines += [" ".join(sentence) for sentence in taken]
    random.Random(0).shuffle(lines)
    output.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    typer.run(main)
