"""Commands: `python -m hf_elmo` vocab, evaluate, score and substitutes."""

import math
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.command_errors import report_errors
from hf_elmo.corpus.commands import (
    DEFAULT_PIPELINE,
    InputFormatOption,
    PipelineOption,
    check_pipeline,
)
from hf_elmo.files.output_file import check_output_file
from hf_elmo.text.text_files import find_files
from hf_elmo.text.text_reader import read_files

from .models import load_language_model
from .perplexity import Perplexity, evaluate_stream, evaluate_text
from .scores import Direction, find_substitutes, score_sentences
from .vocabulary import VOCABULARY_NAME, build_vocabulary, count_words, warn_of_unknown

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES", help="Text files or patterns, also compressed (.gz .xz .bz2 .zst)."
    ),
]
ModelName = Annotated[str, typer.Option("--model", help="Model: a folder or a Hub name.")]


@report_errors
def vocab(
    files: Files,
    output: Annotated[Path, typer.Option(help="Vocabulary file to write.")] = Path(VOCABULARY_NAME),
    size: Annotated[
        int | None,
        typer.Option(help="Maximum number of words, including <S>, </S> and <UNK>.", min=4),
    ] = None,
    min_count: Annotated[int, typer.Option(help="Minimum frequency of a word.", min=1)] = 1,
    input_format: InputFormatOption = "text",
    pipeline: PipelineOption = DEFAULT_PIPELINE,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing output.")
    ] = False,
) -> None:
    """Count words and write the target words of a language model.

    \b
    python -m hf_elmo vocab 'text/*.txt.gz' --size 50000 --output target_vocab.txt

    The file has one word per line: <S>, </S>, <UNK>, then all others by decreasing frequency. The
    sampled softmax needs this order.
    """  # noqa: D301 (click's marker for text without wrapping)
    check_pipeline(input_format, pipeline)
    output = output / VOCABULARY_NAME if output.is_dir() else output
    sources = [name for pattern in files for name in find_files(pattern)]
    check_output_file(output, sources, overwrite=overwrite)
    counts = count_words(read_files(files, input_format, pipeline)(None))
    if not counts:
        raise ValueError(f"Expected words to count, found none in {', '.join(files)}.")
    vocabulary = build_vocabulary(counts, max_size=size, min_count=min_count)
    vocabulary.save(output)
    total = counts.total()
    known = [counts[word] for word in vocabulary.words if word in counts]
    typer.echo(
        f"Wrote {output}: {len(known):,} of {len(counts):,} words, {sum(known) / total:.2%} of "
        f"{total:,} in the text.",
        err=True,  # the vocabulary may go to /dev/stdout
    )


@report_errors
def evaluate(
    files: Files,
    model: ModelName = BUNDLED_NAME,
    protocol: Annotated[
        Literal["sentences", "bilm-tf"],
        typer.Option(
            help="sentences: each sentence on its own; bilm-tf: the LSTM state continues from "
            "sentence to sentence."
        ),
    ] = "sentences",
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="bilm-tf only: number of sentences read in parallel, which changes the result.",
            min=1,
            show_default="128",
        ),
    ] = None,
    input_format: InputFormatOption = "text",
    pipeline: PipelineOption = DEFAULT_PIPELINE,
) -> None:
    """Compute the perplexity of a text, with the full softmax.

    \b
    python -m hf_elmo evaluate heldout.txt --model my-bilm
    python -m hf_elmo evaluate heldout.txt --model my-bilm --protocol bilm-tf --batch-size 16

    Words outside the target vocabulary count as <UNK>, which is easy to predict. Compare only
    perplexities of models with the same vocabulary. A model with a vocabulary of subword pieces
    predicts pieces. The perplexity "per word" excludes sentence boundaries. All other perplexities
    include </S> in the forward direction and <S> in the backward direction.
    """  # noqa: D301 (click's marker for text without wrapping)
    check_pipeline(input_format, pipeline)
    if batch_size is not None and protocol == "sentences":
        raise ValueError("Expected --protocol bilm-tf together with --batch-size.")
    language_model = load_language_model(resolve_name(model))
    text = language_model[-1].read(read_files(files, input_format, pipeline))
    if protocol == "bilm-tf":
        result = evaluate_stream(*language_model, text, batch_size=batch_size or 128)
    else:
        result = evaluate_text(*language_model, text)
    typer.echo(_format(result))
    warn_of_unknown(result.num_unknown, result.num_targets)


def _format(result: Perplexity) -> str:
    rows = {
        "forward": result.forward,
        "backward": result.backward,
        "average": result.average,
        "per word": result.per_word,
    }
    lines = [f"{name:10}{value:12.4f}" for name, value in rows.items() if value is not None]
    counts = {"predicted": result.num_targets, "<UNK>": result.num_unknown}
    lines += [f"{name:10}{count:12,}" for name, count in counts.items()]
    return "\n".join(["perplexity", *lines])


@report_errors
def score(
    files: Files,
    model: ModelName = BUNDLED_NAME,
    input_format: InputFormatOption = "text",
    pipeline: PipelineOption = DEFAULT_PIPELINE,
) -> None:
    """Print each word and its log-probabilities in nats, as one tab-separated line per word.

    \b
    python -m hf_elmo score sentences.txt --model my-bilm > scores.tsv

    A line "# sentence ..." precedes each sentence. It contains the sentence's number, without
    counting empty lines, the sums of the columns and the pseudo-perplexity: exp of the negative
    mean of column 4, or of column 2 if the model is unidirectional. Words outside the target
    vocabulary are scored as <UNK>.

    \b
    column 1  the word
    column 2  its log-probability given the words before it
    column 3  its log-probability given the words after it
    column 4  its log-probability given the words before and after it
    """  # noqa: D301 (click's marker for text without wrapping)
    check_pipeline(input_format, pipeline)
    loaded = load_language_model(resolve_name(model))
    number, num_words, num_unknown = -1, 0, 0
    text = loaded[-1].read(read_files(files, input_format, pipeline))
    for number, scores in enumerate(score_sentences(text(None), *loaded)):
        num_words += len(scores.words)
        num_unknown += scores.num_unknown
        nothing = torch.full((len(scores.words),), math.nan)
        columns = [
            scores.forward[:-1],
            nothing if scores.backward is None else scores.backward[1:],
            nothing if scores.both is None else scores.both,
        ]
        sums = "\t".join(f"{float(column.sum()):.4f}" for column in columns)
        typer.echo(f"# sentence {number}\t{sums}\t{scores.pseudo_perplexity:.4f}")
        for word, *values in zip(scores.words, *(c.tolist() for c in columns), strict=True):
            typer.echo("\t".join([word, *(f"{value:.4f}" for value in values)]))
    if number < 0:
        raise ValueError(f"Expected sentences to score, found none in {', '.join(files)}.")
    warn_of_unknown(num_unknown, num_words)


@report_errors
def substitutes(
    sentence: Annotated[
        str, typer.Argument(metavar="SENTENCE", help="Sentence, with spaces between the words.")
    ],
    position: Annotated[
        int, typer.Argument(metavar="POSITION", help="Position of the word; the first is 0.")
    ],
    model: ModelName = BUNDLED_NAME,
    count: Annotated[int, typer.Option(help="Number of words to print.", min=1)] = 10,
    direction: Annotated[
        Direction | None, typer.Option(help="Context to use; default: all directions of the model.")
    ] = None,
) -> None:
    """Print the most probable words at one position of a sentence, with their probabilities.

    \b
    python -m hf_elmo substitutes "He sat on the bank of the river ." 4
    """  # noqa: D301 (click's marker for text without wrapping)
    loaded = load_language_model(resolve_name(model))
    words = sentence.split()
    for word, value in find_substitutes(words, position, *loaded, count=count, direction=direction):
        typer.echo(f"{word}\t{math.exp(value):.4f}")
