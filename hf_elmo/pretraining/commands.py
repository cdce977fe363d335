"""Command: `python -m hf_elmo pretrain`."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from transformers import (
    EarlyStoppingCallback,
    TrainingArguments,
    set_seed,
)

from hf_elmo.bundled import resolve_name
from hf_elmo.character_ids import NUM_WORD_MARKS
from hf_elmo.command_errors import report_errors
from hf_elmo.configuration_elmo import NUM_BYTE_CHARACTERS, ElmoConfig
from hf_elmo.corpus.commands import DEFAULT_PIPELINE, InputFormatOption, PipelineOption
from hf_elmo.language_model.models import load_vocabulary
from hf_elmo.language_model.vocabulary import (
    PIECES_NAME,
    VOCABULARY_NAME,
    TargetVocabulary,
    build_pieces,
    build_vocabulary,
    count_words,
    warn_of_unknown,
)
from hf_elmo.language_model.window_streams import SentenceStream, WindowStream
from hf_elmo.language_model.windowed_model import WindowedLanguageModel
from hf_elmo.text.text_reader import (
    SentenceReader,
    read_dataset,
    read_files,
)
from hf_elmo.training.checkpoints import is_complete
from hf_elmo.training.resume_checks import list_checkpoints

from .learning_rate import Optimizer, Schedule, choose_warmup
from .models import PRESETS, create_model, load_model_to_continue, read_sizes
from .option_checks import check_model, check_options, hold_options, is_own_file
from .trainer import ElmoTrainer
from .training_arguments import make_arguments

logger = logging.getLogger(__name__)

DEFAULT_VOCABULARY_SIZE = 50_000
# Evaluation ends when a row has no sentence left. With more sentences per row, less text is unused.
SENTENCES_PER_ROW = 20
SMALLEST_NORMAL = 2.0**-1022  # of float64
MANY_LONG = 0.01  # share of words that are too long, in a text that probably has no spaces
LONG_WORDS = (
    "%d of %d words have more than %d bytes, and their other bytes are not read (a letter of Hindi "
    "or Japanese has 3 bytes). Split text without spaces into words. For longer words, set "
    "max_characters_per_token in a file of --config."
)
Preset = Literal["mini", "small", "medium", "original"]
Units = Literal["characters", "pieces", "words"]


@report_errors
def pretrain(
    context: typer.Context,
    output: Annotated[Path, typer.Option(help="Folder for the model and its checkpoints.")],
    train: Annotated[
        list[str] | None,
        typer.Option(
            help="Text files or patterns, also compressed (.gz .xz .bz2 .zst). PATTERN=WEIGHT "
            "reads the files WEIGHT times per pass; 0.5 reads a random half."
        ),
    ] = None,
    input_format: InputFormatOption = "text",
    pipeline: PipelineOption = DEFAULT_PIPELINE,
    dataset: Annotated[
        str | None,
        typer.Option(help="Dataset to stream, instead of --train: a Hub name or a folder."),
    ] = None,
    dataset_config: Annotated[str | None, typer.Option(help="Dataset configuration.")] = None,
    split: Annotated[str, typer.Option(help="Dataset split.")] = "train",
    column: Annotated[str, typer.Option(help="Dataset column with the text.")] = "text",
    valid: Annotated[
        list[str] | None,
        typer.Option(
            help="Held-out text files for the perplexity (protocol of bilm-tf, see evaluate)."
        ),
    ] = None,
    vocabulary: Annotated[
        Path | None,
        typer.Option("--vocab", help="File of target words; default: count words in the text."),
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(help="Without --vocab: maximum number of target words.", min=4)
    ] = DEFAULT_VOCABULARY_SIZE,
    units: Annotated[
        Units,
        typer.Option(
            help="Input of a new model. characters: the spelling of any word; words: a table "
            "of target words; pieces: a table of subword pieces, which are also the targets."
        ),
    ] = "characters",
    preset: Annotated[Preset, typer.Option(help="Size of a new model.")] = "small",
    config: Annotated[
        Path | None, typer.Option(help="config.json of a new model, instead of --preset.")
    ] = None,
    from_model: Annotated[
        str | None,
        typer.Option("--from", help="Model for continued training: a folder or a Hub name."),
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Dropout; default: the model's.", min=0.0, max=0.99)
    ] = None,
    epochs: Annotated[float, typer.Option(help="Number of passes over the text.", min=0.0)] = 10.0,
    max_steps: Annotated[
        int | None, typer.Option(help="Number of steps, instead of --epochs.", min=1)
    ] = None,
    max_hours: Annotated[
        float | None,
        typer.Option(help="Time limit in hours; a cosine or linear rate is 0 by then.", min=0.001),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Parallel rows per process.", min=1)] = 128,
    window: Annotated[int, typer.Option(help="Words per window of back-propagation.", min=1)] = 20,
    accumulate: Annotated[int, typer.Option(help="Windows per training step.", min=1)] = 1,
    negatives: Annotated[
        int, typer.Option(help="Negative words of the sampled softmax; 0: full softmax.", min=0)
    ] = 8192,
    optimizer: Annotated[
        Optimizer,
        typer.Option(help="Optimiser; bilm-tf uses adagrad."),
    ] = "adamw",
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate; default: 0.001 for adamw, 0.2 for adagrad.")
    ] = None,
    schedule: Annotated[
        Schedule | None,
        typer.Option(
            help="Learning-rate schedule; default: cosine for adamw, constant for adagrad."
        ),
    ] = None,
    warmup_steps: Annotated[
        int | None,
        typer.Option(
            help="Warm-up steps; default: 1000 for adamw, at most a tenth of all steps; 0 for "
            "adagrad. With --max-hours, at most a tenth of this time.",
            min=0,
        ),
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.", min=0.0)] = 0.0,
    ema: Annotated[
        float | None,
        typer.Option(
            help="Decay of a moving average of the weights, such as 0.999; the average is the "
            "model that is evaluated and saved.",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    char_noise: Annotated[
        float,
        typer.Option(
            help="Share of input words of three letters and more that get a typing error; target "
            "words are never changed.",
            min=0.0,
            max=1.0,
        ),
    ] = 0.0,
    max_grad_norm: Annotated[
        float,
        typer.Option(
            help="Maximum gradient norm, for a loss that is summed over a window, as in bilm-tf; "
            "0 = no maximum."
        ),
    ] = 10.0,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Compute matrix products in bfloat16.")
    ] = False,
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing", help="Recompute activations: less memory, more time."
        ),
    ] = False,
    evaluate_every: Annotated[
        int | None,
        typer.Option(help="With --valid: steps between evaluations; default: 1000.", min=1),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after this number of evaluations without improvement.", min=1),
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(
            help="Without --valid: steps between checkpoints; default: 1000. With --valid, each "
            "evaluation writes a checkpoint.",
            min=1,
        ),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            help="Number of checkpoints to keep; the best and the newest are never deleted.", min=1
        ),
    ] = 2,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint, if there is one.")
    ] = False,
    log_every: Annotated[int, typer.Option(help="Steps between log lines.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Do not use a GPU.")] = False,
) -> None:
    """Train a new biLM, or continue the training of a model, on any amount of text.

    \b
    python -m hf_elmo pretrain --train 'text/*.txt.gz' --valid valid.txt --output my-bilm
    python -m hf_elmo pretrain --train mine.txt --from elmo-mini-en --epochs 3 --output my-elmo
    python -m hf_elmo pretrain --train 'text/*.xz' --output my-bilm --resume
    torchrun --nproc-per-node 8 -m hf_elmo pretrain --train 'text/*' --output big \\
      --preset original --bfloat16

    Sentences are shuffled across several files and in a buffer. The text is not held in memory. As
    in bilm-tf, each row of the batch reads one sentence after another, --window words at a time,
    with a continuing LSTM state. With several processes, each process trains on its own rows.

    The output contains the model, its tokenizer and its target words. With --valid, the model is
    the best checkpoint. For TensorBoard, run tensorboard --logdir my-bilm/runs.
    """  # noqa: D301 (click's marker for text without wrapping)
    check_options(context)
    text = _read_text(context.params)
    heldout = read_files(valid, input_format, pipeline) if valid else None
    hold_options(context.params)
    resumed = output if resume else None
    words = _choose_vocabulary(text, vocabulary, vocab_size, units, from_model, resumed)
    text, heldout = words.read(text), heldout and words.read(heldout)
    set_seed(seed)
    if from_model is not None:
        model, tokenizer = load_model_to_continue(resolve_name(from_model), words)
    else:
        sizes = read_sizes(config) if config else ElmoConfig(**PRESETS[preset])
        model, tokenizer = create_model(sizes, words, has_characters=units == "characters")
    check_model(context.params, model.config)
    if dropout is not None:
        model.config.dropout = dropout
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    arguments = make_arguments(context.params, _count_rows(heldout, batch_size))
    num_steps = _count_steps(text, words, context.params, arguments.world_size, model.config)
    arguments.max_steps = num_steps
    arguments.warmup_steps = choose_warmup(optimizer, warmup_steps, num_steps)
    trainer = ElmoTrainer(
        WindowedLanguageModel(model, num_negatives=negatives or None, seed=seed),
        arguments,
        tokenizer=tokenizer,
        vocabulary=words,
        stream=_stream_windows(text, words, arguments, window, char_noise),
        heldout=heldout,
        max_hours=max_hours,
        ema=ema,
        callbacks=[EarlyStoppingCallback(patience)] if patience else [],
    )
    with flush_denormal():
        trainer.train(resume_from_checkpoint=resume)
    trainer.save_and_end()
    if arguments.process_index == 0:
        typer.echo(f"Wrote {output}.")


@contextmanager
def flush_denormal() -> Iterator[None]:
    """Flush denormal numbers to 0 temporarily.

    The softmax rows of unseen words get no gradient, so the optimiser's moments of these rows decay
    to denormal numbers. A CPU computes slowly with such numbers.
    """
    was_on = bool(torch.tensor(SMALLEST_NORMAL, dtype=torch.float64) / 2 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_on)


def _read_text(options: dict[str, Any]) -> SentenceReader:
    """Make the reader of the text to train on."""
    files, dataset = options["train"], options["dataset"]
    form = options["input_format"], options["pipeline"]
    if bool(files) == bool(dataset):
        raise ValueError("Expected either --train or --dataset.")
    if files:
        is_own = partial(is_own_file, output=Path(options["output"]))
        text = read_files(files, *form, has_weights=True, leave_out=is_own)
    else:
        examples = _load_dataset(dataset, options["dataset_config"], options["split"])
        text = read_dataset(examples, options["column"], *form)
    if next(text(None), None) is None:
        raise ValueError("Expected sentences to train on, found none.")
    return text


def _load_dataset(name: str, config: str | None, split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "Reading a dataset needs the package datasets. Run pip install datasets."
        ) from error
    return load_dataset(name, config, split=split, streaming=True)


def _count_rows(heldout: SentenceReader | None, batch_size: int) -> int:
    """Return the batch size of evaluations: as in training, or smaller for a short text."""
    if heldout is None:
        return batch_size
    count = sum(1 for _ in heldout(None))  # read all, so that a bad line raises an error now
    if not count:
        raise ValueError("Expected sentences in the text of --valid, found none.")
    return min(max(1, count // SENTENCES_PER_ROW), batch_size)


def _choose_vocabulary(
    text: SentenceReader,
    path: Path | None,
    size: int,
    units: Units,
    from_model: str | None,
    resumed: Path | None,
) -> TargetVocabulary:
    """Read target words or pieces, or build them from the text; a resumed run keeps its own."""
    given = None if path is None else TargetVocabulary.from_file(path)
    for checkpoint in [] if resumed is None else list_checkpoints(resumed).values():
        names = (VOCABULARY_NAME, PIECES_NAME) if units == "pieces" else (VOCABULARY_NAME,)
        if not all(is_complete(checkpoint / name) for name in names):  # it is skipped later
            continue
        known = load_vocabulary(str(checkpoint))
        if known is not None and given is not None and known.words != given.words:
            raise ValueError(f"Expected the target words of {checkpoint} in {path}, got others.")
        given = known or given
    if from_model is not None:
        known = load_vocabulary(resolve_name(from_model))
        if path is not None and known is not None and known.pieces is not None:
            raise ValueError("Expected --from without --vocab: a model keeps its pieces.")
        given = given or known
    if given is None and units == "pieces":
        return build_pieces(text, max_size=size)
    return given or build_vocabulary(count_words(text(None)), max_size=size)


def _count_steps(
    text: SentenceReader,
    words: TargetVocabulary,
    options: dict[str, Any],
    num_processes: int,
    config: ElmoConfig,
) -> int:
    """Count the steps. Warn if many words of the text are not target words, or are too long."""
    most: int | None = options["max_steps"]
    # Text files are always read once, so that a bad line raises an error now, not after days.
    if most and (options["dataset"] or options["resume"]):
        return most
    num_words = num_sentences = num_unknown = num_long = 0
    reads_bytes = config.char_embedding_size and config.char_vocab_size == NUM_BYTE_CHARACTERS
    longest = config.max_characters_per_token - NUM_WORD_MARKS if reads_bytes else math.inf
    for sentence in text(None):
        num_words += len(sentence)
        num_sentences += 1
        num_unknown += words.convert_words_to_ids(sentence).count(words.unknown_id)
        num_long += sum(len(word.encode("utf-8", "ignore")) > longest for word in sentence)
    num_targets = num_words + num_sentences  # also the ends of the sentences
    warn_of_unknown(num_unknown, num_targets)
    if num_long > MANY_LONG * num_words:
        logger.warning(LONG_WORDS, num_long, num_words, longest)
    per_step = options["batch_size"] * num_processes * options["window"] * options["accumulate"]
    return most or max(1, math.ceil(options["epochs"] * num_targets / per_step))


def _stream_windows(
    text: SentenceReader,
    words: TargetVocabulary,
    arguments: TrainingArguments,
    window: int,
    char_noise: float,
) -> WindowStream:
    """Stream the windows of this process's rows, in an order given by the seed."""
    batch_size = arguments.per_device_train_batch_size
    first = batch_size * arguments.process_index
    return WindowStream(
        SentenceStream(text, seed=f"{arguments.seed} forward"),
        SentenceStream(text, seed=f"{arguments.seed} backward"),
        words,
        num_rows=batch_size * arguments.world_size,
        window=window,
        rows=range(first, first + batch_size),
        char_noise=char_noise,
        seed=arguments.seed,
    )
