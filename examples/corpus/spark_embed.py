"""Compute a vector for each sentence of a parquet corpus with Spark.

python examples/corpus/spark_embed.py corpus.parquet vectors.parquet

It needs Java 17 and, in a clone, `pip install -c constraints.txt '.[scale]' pyspark`. Submit it
to a cluster with spark-submit.
"""

import os
import sys
from pathlib import Path

import typer
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from hf_elmo.corpus import SentenceEmbedder

ROWS = 512  # per batch


def main(source: str, output: str, model: str = "elmo-mini-en", text_column: str = "text") -> None:
    """Write the rows of a parquet corpus with an additional column of vectors."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = Path(model)
    embedder = SentenceEmbedder(
        str(folder.resolve()) if folder.exists() else model,
        pooling="mean",
        text_column=text_column,
        threads=1,  # Spark runs a Python process for each core
    )
    spark = (
        SparkSession.builder.appName("ELMo vectors")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS)
        .getOrCreate()
    )
    rows = spark.read.parquet(source)
    schema = StructType([*rows.schema.fields, StructField("vectors", ArrayType(FloatType()))])
    rows.mapInArrow(lambda batches: map(embedder, batches), schema).write.parquet(output)
    spark.stop()


if __name__ == "__main__":
    typer.run(main)
