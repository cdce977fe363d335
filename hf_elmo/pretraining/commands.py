"""Commands of `python -m hf_elmo`: vocab, pretrain, evaluate, score, substitutes."""

import importlib.util
import math
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import torch
import typer
from transformers import (
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.corpus.sentences import Text, read_dataset, read_files
from hf_elmo.language_model.models import (
    PRESETS,
    create_model,
    load_language_model,
    load_model_to_continue,
    load_vocabulary,
)
from hf_elmo.language_model.perplexity import Perplexity, evaluate_stream, evaluate_text
from hf_elmo.language_model.scores import Direction, find_substitutes, score_sentences
from hf_elmo.language_model.streams import SentenceStream, WindowStream
from hf_elmo.language_model.vocabulary import (
    VOCABULARY_NAME,
    TargetVocabulary,
    build_vocabulary,
    count_words,
)
from hf_elmo.language_model.windows import WindowedLanguageModel
from hf_elmo.modeling_heads import ElmoForPreTraining

from .trainer import ElmoTrainer

NUM_BOUNDARIES = 1  # predictions of a direction and sentence beside its words
DEFAULT_VOCABULARY_SIZE = 50_000
ADAM_BETA2 = (
    0.99  # gradients of windows that follow one another are alike: forget sooner than 0.999
)

Preset = Literal["mini", "small", "medium", "original"]
Optimizer = Literal["adamw", "adagrad"]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES", help="Text files or patterns: one sentence a line, words by spaces."
    ),
]
ModelName = Annotated[str, typer.Option("--model", help="A folder or a name on the Hub.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of pretraining to an application."""
    for command in (vocab, pretrain, evaluate, score, substitutes):
        app.command()(_report_errors(command))


def _report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """End with a message where the user can set it right."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (OSError, ValueError, ImportError) as error:
            _fail(str(error))

    return run


def _fail(message: str) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(1)


def vocab(
    files: Files,
    output: Annotated[Path, typer.Option(help="File to write.")] = Path(VOCABULARY_NAME),
    size: Annotated[
        int | None, typer.Option(help="Words at most, <S>, </S> and <UNK> included.", min=4)
    ] = None,
    min_count: Annotated[int, typer.Option(help="Leave out words that are rarer.", min=1)] = 1,
) -> None:
    """Count words, and write those that the language model shall predict.

    \b
    python -m hf_elmo vocab 'text/*.txt.gz' --size 50000 --output target_vocab.txt

    One word a line: <S>, </S>, <UNK>, then by falling frequency, as the sampled softmax needs it.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    counts = count_words(read_files(files)(None))
    vocabulary = build_vocabulary(counts, max_size=size, min_count=min_count)
    vocabulary.save(output)
    total = counts.total()
    known = sum(counts[word] for word in vocabulary.words)
    typer.echo(
        f"Wrote {output}: {len(vocabulary):,} of {len(counts):,} words, {known / total:.2%} of "
        f"{total:,} in the text."
    )


def pretrain(
    output: Annotated[Path, typer.Option(help="Folder of the model and its checkpoints.")],
    train: Annotated[
        list[str] | None,
        typer.Option(help="Text files or patterns, one sentence a line; .gz .xz .bz2 .zst too."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Instead: a dataset of the Hub, or a folder; streamed.")
    ] = None,
    dataset_config: Annotated[str | None, typer.Option(help="Its configuration.")] = None,
    split: Annotated[str, typer.Option(help="Its split.")] = "train",
    column: Annotated[str, typer.Option(help="Its column of text.")] = "text",
    valid: Annotated[
        list[str] | None, typer.Option(help="Text files to compute the perplexity of.")
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option("--vocab", help="File of target words; else counted in the text.")
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(help="Target words, if they are counted.", min=4)
    ] = DEFAULT_VOCABULARY_SIZE,
    preset: Annotated[Preset, typer.Option(help="Size of a new model.")] = "small",
    config: Annotated[
        Path | None, typer.Option(help="config.json of a new model, instead of a preset.")
    ] = None,
    from_model: Annotated[
        str | None, typer.Option("--from", help="Train this model on: a folder or a Hub name.")
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Dropout; else the model's.", min=0.0, max=0.99)
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the text.", min=0.0)] = 10.0,
    max_steps: Annotated[int | None, typer.Option(help="Steps, instead of passes.", min=1)] = None,
    max_hours: Annotated[
        float | None, typer.Option(help="Stop then at the latest, at a learning rate of 0.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows of a process.", min=1)] = 128,
    window: Annotated[int, typer.Option(help="Steps of back-propagation.", min=1)] = 20,
    accumulate: Annotated[int, typer.Option(help="Windows of a training step.", min=1)] = 1,
    negatives: Annotated[
        int, typer.Option(help="Of the sampled softmax; 0 = the full softmax.", min=0)
    ] = 8192,
    optimizer: Annotated[
        Optimizer,
        typer.Option(help="AdamW with warm-up and cosine decay, or bilm-tf's Adagrad."),
    ] = "adamw",
    learning_rate: Annotated[
        float | None, typer.Option(help="Else 0.001 for AdamW, 0.2 for Adagrad.")
    ] = None,
    warmup_steps: Annotated[int, typer.Option(help="Of AdamW.", min=0)] = 1000,
    weight_decay: Annotated[float, typer.Option(help="Of the weights.", min=0.0)] = 0.0,
    max_grad_norm: Annotated[
        float, typer.Option(help="Bound of the gradients' norm, of the loss times the window.")
    ] = 10.0,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Compute products in bfloat16.")
    ] = False,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
    ] = False,
    evaluate_every: Annotated[int, typer.Option(help="Steps.", min=1)] = 1000,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many evaluations without a better one.", min=1)
    ] = None,
    save_every: Annotated[int, typer.Option(help="Steps.", min=1)] = 1000,
    keep: Annotated[int, typer.Option(help="Checkpoints to keep, with the best.", min=1)] = 2,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")
    ] = False,
    log_every: Annotated[int, typer.Option(help="Steps.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of weights, order, negatives and dropout.")] = 0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use no GPU.")] = False,
) -> None:
    """Train a biLM, a new one or one that is there, on any amount of text.

    \b
    python -m hf_elmo pretrain --train 'text/*.txt.gz' --valid valid.txt --output my-bilm
    python -m hf_elmo pretrain --train mine.txt --from elmo-mini-en --epochs 3 --output my-elmo
    python -m hf_elmo pretrain --train 'text/*.xz' --output my-bilm --resume
    torchrun --nproc-per-node 8 -m hf_elmo pretrain --train 'text/*' --output big \\
      --preset original --bfloat16

    The text is shuffled, sentence by sentence, from several files at once and through a buffer. It
    is not held in memory. Each row of the batch reads one sentence after the other, as in bilm-tf,
    20 words at a time; LSTM states run on. With several processes, each trains on its own rows.

    The folder gets the model, its tokenizer and its target words. With --valid it is the best of
    the checkpoints. TensorBoard: pip install tensorboard, tensorboard --logdir my-bilm/runs.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    if patience is not None and valid is None:
        raise ValueError("Expected --valid with --patience: held-out text to judge by.")
    if not resume and any(output.glob("checkpoint-*")):
        raise ValueError(f"{output} holds checkpoints: --resume, or choose another folder.")
    text = _read_text(train, dataset, dataset_config, split, column)
    heldout = read_files(valid) if valid else None
    words = _choose_vocabulary(text, vocabulary, vocab_size, from_model)
    set_seed(seed)
    model, tokenizer = _choose_model(words, preset, config, from_model)
    if dropout is not None:
        model.config.dropout = dropout
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    arguments = TrainingArguments(
        str(output),
        max_steps=1 if max_steps is None else max_steps,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=max_grad_norm,
        bf16=bfloat16,
        logging_steps=log_every,
        report_to=["tensorboard"] if importlib.util.find_spec("tensorboard") else [],
        ddp_find_unused_parameters=False,
        ignore_data_skip=True,  # the stream knows its position
        seed=seed,
        use_cpu=cpu,
        **_optimizer_arguments(optimizer, learning_rate, warmup_steps, weight_decay),
        **_checkpoint_arguments(heldout, evaluate_every, save_every, keep),
    )
    if max_steps is None:
        per_step = batch_size * arguments.world_size * window * accumulate
        arguments.max_steps = max(1, math.ceil(epochs * _count_targets(text) / per_step))
    trainer = ElmoTrainer(
        WindowedLanguageModel(model, num_negatives=negatives or None, seed=seed),
        arguments,
        tokenizer=tokenizer,
        vocabulary=words,
        stream=_stream_windows(text, words, arguments, window),
        heldout=heldout,
        max_hours=max_hours,
        callbacks=[EarlyStoppingCallback(patience)] if patience else [],
    )
    torch.set_flush_denormal(True)  # moments of rows that are not met fade away: slow on a CPU
    trainer.train(resume_from_checkpoint=resume or None)
    trainer.save_model(str(output))
    if arguments.process_index == 0:
        typer.echo(f"Wrote {output}.")


def _read_text(
    files: list[str] | None, dataset: str | None, config: str | None, split: str, column: str
) -> Text:
    if (files is None) == (dataset is None):
        raise ValueError("Expected text to train on: either --train or --dataset.")
    if files is not None:
        return read_files(files)
    return read_dataset(_load_dataset(str(dataset), config, split), column)


def _load_dataset(name: str, config: str | None, split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "Reading a dataset needs the package datasets: pip install 'spacy-elmo[train]'."
        ) from error
    return load_dataset(name, config, split=split, streaming=True)


def _choose_vocabulary(
    text: Text, path: Path | None, size: int, from_model: str | None
) -> TargetVocabulary:
    if path is not None:
        return TargetVocabulary.from_file(path)
    known = None if from_model is None else load_vocabulary(resolve_name(from_model))
    return known or build_vocabulary(count_words(text(None)), max_size=size)


def _choose_model(
    words: TargetVocabulary, preset: Preset, config: Path | None, from_model: str | None
) -> tuple[ElmoForPreTraining, PreTrainedTokenizerBase]:
    if from_model is not None:
        return load_model_to_continue(resolve_name(from_model), words)
    if config is not None:
        return create_model(ElmoConfig.from_json_file(config), words)
    return create_model(ElmoConfig(**PRESETS[preset]), words)


def _count_targets(text: Text) -> int:
    return sum(len(words) + NUM_BOUNDARIES for words in text(None))


def _optimizer_arguments(
    optimizer: Optimizer, learning_rate: float | None, warmup_steps: int, weight_decay: float
) -> dict[str, Any]:
    """Give `TrainingArguments` the optimiser and its learning rate: bilm-tf's is constant."""
    choice: dict[str, Any] = {"weight_decay": weight_decay, "adam_beta2": ADAM_BETA2}
    if optimizer == "adagrad":
        return choice | {
            "optim": "adagrad",
            "learning_rate": learning_rate or 0.2,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
        }
    return choice | {
        "optim": "adamw_torch_fused",
        "learning_rate": learning_rate or 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": warmup_steps,
    }


def _checkpoint_arguments(
    heldout: Text | None, evaluate_every: int, save_every: int, keep: int
) -> dict[str, Any]:
    """Tell `TrainingArguments` when to save; with held-out text, also to keep the best."""
    if heldout is None:
        return {"save_steps": save_every, "save_total_limit": keep}
    return {
        "eval_strategy": "steps",
        "eval_steps": evaluate_every,
        "save_steps": evaluate_every,  # each checkpoint has a perplexity
        "save_total_limit": keep,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_perplexity",
        "greater_is_better": False,
    }


def _stream_windows(
    text: Text, words: TargetVocabulary, arguments: TrainingArguments, window: int
) -> WindowStream:
    """Stream the windows of this process's rows, in an order that the seed decides."""
    batch_size = arguments.per_device_train_batch_size
    first = batch_size * arguments.process_index
    return WindowStream(
        SentenceStream(text, seed=f"{arguments.seed} forward"),
        SentenceStream(text, seed=f"{arguments.seed} backward"),
        words,
        num_rows=batch_size * arguments.world_size,
        window=window,
        rows=range(first, first + batch_size),
    )


def evaluate(
    files: Files,
    model: ModelName = BUNDLED_NAME,
    protocol: Annotated[
        Literal["sentences", "bilm-tf"],
        typer.Option(help="Each sentence on its own, or a stream with the state carried on."),
    ] = "sentences",
    batch_size: Annotated[
        int, typer.Option(help="Rows of the stream; they matter for the result.", min=1)
    ] = 128,
) -> None:
    """Compute the perplexity of a text, with the full softmax.

    \b
    python -m hf_elmo evaluate heldout.txt --model my-bilm
    python -m hf_elmo evaluate heldout.txt --model my-bilm --protocol bilm-tf --batch-size 16

    Words outside the target vocabulary count as <UNK>. The ends of sentences are predicted too,
    </S> by the forward direction and <S> by the backward one, but for the figure "per word".
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    text = read_files(files)
    language_model = load_language_model(resolve_name(model))
    if protocol == "bilm-tf":
        result = evaluate_stream(*language_model, text, batch_size=batch_size)
    else:
        result = evaluate_text(*language_model, text)
    typer.echo(_format(result))


def _format(result: Perplexity) -> str:
    rows = {
        "forward": result.forward,
        "backward": result.backward,
        "average": result.average,
        "per word": result.per_word,
    }
    lines = [f"{name:10}{value:12.4f}" for name, value in rows.items() if value is not None]
    return "\n".join(["perplexity", *lines, f"{'predicted':10}{result.num_targets:12,}"])


def score(
    files: Files,
    model: ModelName = BUNDLED_NAME,
) -> None:
    """Write how likely each word is, in nats: a line for each, tab-separated.

    \b
    python -m hf_elmo score sentences.txt --model my-bilm > scores.tsv

    Columns: the word; its log-probability given the words before it, given those after it, and
    given both. A line "# sentence ..." before each sentence gives the sums of these and its
    pseudo-perplexity, exp of the mean of the last, its sign turned.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    loaded = load_language_model(resolve_name(model))
    number = -1
    for number, scores in enumerate(score_sentences(read_files(files)(None), *loaded)):
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
        raise typer.BadParameter(f"No sentence in {', '.join(files)}.")


def substitutes(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="Words, by spaces.")],
    position: Annotated[int, typer.Argument(metavar="POSITION", help="The word's number, from 0.")],
    model: ModelName = BUNDLED_NAME,
    count: Annotated[int, typer.Option(help="Words to show.", min=1)] = 10,
    direction: Annotated[
        Direction | None, typer.Option(help="Expect them from one side only.")
    ] = None,
) -> None:
    """Show the words that the model expects most in the place of one.

    \b
    python -m hf_elmo substitutes "He sat on the bank of the river ." 4
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    loaded = load_language_model(resolve_name(model))
    words = sentence.split()
    for word, value in find_substitutes(words, position, *loaded, count=count, direction=direction):
        typer.echo(f"{word}\t{math.exp(value):.4f}")
