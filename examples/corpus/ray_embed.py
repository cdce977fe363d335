"""Compute a vector for each sentence of a parquet corpus with Ray Data.

python examples/corpus/ray_embed.py corpus.parquet vectors

It needs `pip install -c constraints.txt '.[scale]' 'ray[data]'`. On a cluster, start it with
`ray job submit`; every machine must be able to load the model.
"""

from typing import Any

import ray
import typer

from hf_elmo.corpus import SentenceEmbedder


class Embed:
    """An actor of Ray, which loads the model once."""

    def __init__(self, model: str, text_column: str) -> None:
        self.embed = SentenceEmbedder(model, pooling="mean", text_column=text_column, threads=1)

    def __call__(self, batch: Any) -> Any:
        """Add a column of vectors to a table of pyarrow."""
        return self.embed(batch)


def main(
    source: str,
    output: str,
    model: str = "elmo-mini-en",
    text_column: str = "text",
    workers: int = 2,
) -> None:
    """Write the rows of a parquet corpus with an additional column of vectors."""
    rows = ray.data.read_parquet(source)
    rows = rows.map_batches(
        Embed,
        fn_constructor_args=(model, text_column),
        batch_size=512,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
    )
    rows.write_parquet(output)


if __name__ == "__main__":
    typer.run(main)
