"""The commands `train`, `test` and `predict` of `python -m hf_elmo`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import typer
from tqdm import tqdm
from transformers import set_seed

from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.command_errors import report_errors
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.files.output_file import check_output_file, write_file
from hf_elmo.inference.layer_cache import DEFAULT_BYTES, LayerCache
from hf_elmo.loading import find_device
from hf_elmo.model_card import CARD_FILE
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.tokenization_elmo import ElmoTokenizer
from hf_elmo.training.resume_checks import (
    check_output,
    cut_path,
    fingerprint,
    hold_to_settings,
    name_option,
)
from hf_elmo.training.time_bound import TimeBound

from .modeling import load_bilm
from .readers import Use
from .registry import TASKS, load_task_model
from .static_vectors import (
    STATIC_WORDS_NAME,
    StaticVectors,
    checksum_words,
    read_vectors,
    scale_vectors,
)
from .task import Task
from .task import predict as predict_examples
from .task_inputs import WordInputs
from .trainer import CacheFilling, TaskTrainer, make_arguments

EXAMPLES_PER_PART = 2**12  # predicted and written at a time, to limit memory

Place = Literal["input", "output", "both", "none"]


def _find_task(name: str) -> Task[Any, Any]:
    if name not in TASKS:
        raise ValueError(f"Expected a task ({', '.join(TASKS)}), got {name!r}.")
    return TASKS[name]


@report_errors
def train(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help=f"{', '.join(TASKS)}.")],
    train: Annotated[Path, typer.Option(help="Examples to train on.")],
    dev: Annotated[Path, typer.Option(help="Examples for choosing the best model.")],
    output: Annotated[Path, typer.Option(help="Folder of the model and its checkpoints.")],
    model: Annotated[str, typer.Option(help="The biLM: a folder or a name on the Hub.")] = (
        BUNDLED_NAME
    ),
    preset: Annotated[
        Literal["cpu", "paper"],
        typer.Option(
            help="Sizes of the model, and defaults of other options. paper: as published; cpu: "
            "about half the sizes."
        ),
    ] = "cpu",
    elmo: Annotated[
        Place | None,
        typer.Option(
            help="Place of ELMo in the task model: the encoder's input, its output, both or none; "
            "default: as in the preset."
        ),
    ] = None,
    mix_layers: Annotated[
        Literal["all", "top", "words"] | None,
        typer.Option(
            help="Layers of the biLM to mix: all, the top layer, or the word vectors (layer 0)."
        ),
    ] = None,
    fixed_mix: Annotated[
        bool | None, typer.Option("--fixed-mix", help="Keep the initial mix of the layers.")
    ] = None,
    layer_norm: Annotated[
        Literal["none", "sentence", "batch"] | None,
        typer.Option(
            help="Layer normalization before each mix, with the mean and variance of each sentence "
            "or of the complete batch. With batch, results depend on the batch size."
        ),
    ] = None,
    mix_l2: Annotated[
        float | None,
        typer.Option(help="Penalty on the mix weights: the lambda of Peters et al. 2018.", min=0),
    ] = None,
    elmo_dropout: Annotated[float | None, typer.Option(help="Dropout of each mix.", min=0)] = None,
    train_bilm: Annotated[
        bool | None, typer.Option("--train-bilm", help="Train the biLM too.")
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="Static word vectors in addition to ELMo: a word2vec (text or .bin) or GloVe file."
        ),
    ] = None,
    max_vectors: Annotated[
        int | None,
        typer.Option(help="Maximum number of static vectors, from the top of the file.", min=1),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Maximum number of epochs.", min=1)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples per training step.", min=1)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Initial learning rate.", min=0)
    ] = None,
    schedule: Annotated[
        Literal["constant", "linear", "halved"] | None,
        typer.Option(
            help="Learning rate: constant, linear to 0, or halved when the score stops improving."
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after this number of epochs without a better score.", min=1),
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="Limit of processor time in minutes, of all threads together, including earlier "
            "runs with the same --output. The model is scored at the limit; for --patience and "
            "--schedule halved, this counts as an epoch.",
            min=0,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    cache_bytes: Annotated[
        int, typer.Option(help="Maximum memory for the biLM's layers, in bytes.", min=0)
    ] = DEFAULT_BYTES,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint, if there is one.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write logs for TensorBoard.")
    ] = False,
) -> None:
    """Train a model of a task: squad, entailment, srl, coref, ner or sentiment.

    \b
    python -m hf_elmo train ner --train train.conll --dev dev.conll --output my-ner

    The model with the best score on --dev is kept. A frozen biLM reads the text once. Its layers
    are kept in memory, up to --cache-bytes; layers beyond this limit are recomputed.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    chosen = _find_task(task)
    _check_options(context.params)
    if chosen.needs_batch_size_one and batch_size not in (None, 1):
        raise ValueError(f"Expected --batch-size 1 for {task}, got {batch_size}.")
    check_output(output, resume=resume, others=(CARD_FILE, STATIC_WORDS_NAME))
    settings = {x: value for x, value in context.params.items() if x not in FREE_OPTIONS}
    settings["model"] = cut_path(model)
    files = {"train": train, "dev": dev, "vectors": vectors, "model": Path(resolve_name(model))}
    contents = {x: fingerprint(path) for x, path in files.items() if path is not None}
    hold_to_settings(output, settings, contents)
    clock = TimeBound(output, max_minutes)
    examples, heldout = chosen.read(train, "train", preset), chosen.read(dev)
    static = None if vectors is None else read_vectors(vectors, max_words=max_vectors)
    mix = {"mix_layers": mix_layers, "mix_layer_norm": layer_norm, "mix_l2": mix_l2}
    fields = _keep_set({"elmo_at": elmo, "elmo_dropout": elmo_dropout})
    fields["elmo"] = _keep_set(mix) | {"train_mix": not fixed_mix, "freeze_bilm": not train_bilm}
    set_seed(seed)
    inputs = _make_model(chosen, preset, examples, model, static, fields, cache_bytes)
    for data, path in ((examples, train), (heldout, dev)):
        chosen.check(data, path, inputs.model.config)
    changes: dict[str, Any] = {"num_epochs": epochs, "batch_size": batch_size}
    changes |= {"learning_rate": learning_rate, "schedule": schedule, "patience": patience}
    recipe = replace(chosen.presets[preset].recipe, **_keep_set(changes))
    arguments = make_arguments(
        chosen, recipe, output, seed=seed, report_to="tensorboard" if tensorboard else "none"
    )
    sentences = [words for e in [*examples, *heldout] for words in chosen.texts(e)]
    inputs.warn_of_unknown(sentences)
    trainer = TaskTrainer(
        chosen,
        inputs.model,
        arguments,
        recipe=recipe,
        inputs=inputs,
        train=examples,
        dev=heldout,
        callbacks=[clock, CacheFilling(inputs, sentences)],
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.evaluate()
    trainer.save_model()
    clock.note()
    typer.echo(json.dumps(inputs.model.config.scores))


# Options that may change when a run is resumed.
FREE_OPTIONS = ("output", "max_minutes", "cache_bytes", "resume", "tensorboard")
MIX_OPTIONS = ("mix_layers", "fixed_mix", "layer_norm", "mix_l2", "elmo_dropout", "train_bilm")


def _check_options(options: dict[str, Any]) -> None:
    """Refuse options that would do nothing, and a learning rate that trains nothing."""
    if options["learning_rate"] is not None and not options["learning_rate"] > 0:
        raise ValueError(f"Expected --learning-rate above 0, got {options['learning_rate']}.")
    useless = [name for name in MIX_OPTIONS if options[name] is not None]
    if options["elmo"] == "none" and useless:
        raise ValueError(f"Expected no {name_option(useless[0])} together with --elmo none.")
    if options["mix_l2"] and (options["fixed_mix"] or options["mix_layers"] in ("top", "words")):
        raise ValueError(
            "Expected no --mix-l2 with --fixed-mix or --mix-layers top or words: no mix is learned."
        )
    if options["max_vectors"] is not None and options["vectors"] is None:
        raise ValueError("Expected --vectors where --max-vectors is given.")


def _keep_set(options: dict[str, Any]) -> dict[str, Any]:
    """Leave out options that were not given, so that the preset's values apply."""
    return {name: value for name, value in options.items() if value is not None}


def _make_model(
    task: Task[Any, Any],
    preset: str,
    examples: Sequence[Any],
    name: str,
    static: StaticVectors | None,
    fields: dict[str, Any],
    cache_bytes: int,
) -> WordInputs:
    """Make a new model; return the `WordInputs` that holds it."""
    folder = resolve_name(name)
    bilm = ElmoModel.from_pretrained(folder)
    given, _ = ElmoConfig.get_config_dict(folder)
    model_type = given.get("model_type", ElmoConfig.model_type)
    is_classifier = any("Classification" in name for name in given.get("architectures") or ())
    if model_type != ElmoConfig.model_type or is_classifier:  # with the mix of its own task
        for field in ("mix_layers", "mix_layer_norm", "mix_l2"):
            setattr(bilm.config, field, getattr(ElmoConfig, field))
    if static is not None:
        fields["static_vocab_size"] = 1 + len(static.words)
        fields["static_size"] = static.table.shape[1]
        fields["static_checksum"] = checksum_words(static.words)
    model = task.model(task.make_config(preset, examples, bilm.config, **fields))
    load_bilm(model, bilm)
    if static is not None:
        with torch.no_grad():
            model.static_vectors.weight[1:] = scale_vectors(static.table)
    words = [] if static is None else static.words
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    return WordInputs(model, tokenizer, static_words=words, cache=LayerCache(cache_bytes))


ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A trained model: a folder or a name on the Hub.")
]


BatchSizeOption = Annotated[int, typer.Option(help="Examples per batch.", min=1)]
DeviceOption = Annotated[
    str | None, typer.Option(help="Device, such as cpu or cuda:1; default: a GPU if there is one.")
]


@report_errors
def score_model(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Examples with gold labels.")],
    batch_size: BatchSizeOption = 32,
    device: DeviceOption = None,
) -> None:
    """Score a trained model on examples in the format of its training data."""
    tasks, examples, found = zip(*_predict(model, data, "score", batch_size, device), strict=True)
    typer.echo(json.dumps(tasks[0].score([*chain(*examples)], [*chain(*found)])))


@report_errors
def predict(
    model: ModelArgument,
    source: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="Examples; labels, if any, are not used."),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="JSON lines to write.")],
    batch_size: BatchSizeOption = 32,
    device: DeviceOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUTPUT if it exists.")
    ] = False,
) -> None:
    """Write the predictions of a trained model, one line of JSON per example.

    Blank lines are skipped, as are comments and -DOCSTART- in columns. "line" in the output is the
    number of the line in INPUT at which the example starts, from 1. Coreference documents have a
    "name" instead, questions an "id".
    """
    check_output_file(output, [source], overwrite=overwrite)
    parts = _predict(model, source, "predict", batch_size, device)
    lines = (line for part in parts for line in _describe(*part))
    # A lone surrogate of the input, `"\\ud83d"`, is not UTF-8: it is written as it was escaped.
    write_file(output, lines, errors="backslashreplace")


def _describe(task: Task[Any, Any], examples: list[Any], found: list[Any]) -> Iterator[str]:
    """Yield one line of JSON per prediction."""
    for example, one in zip(examples, found, strict=True):
        place = {"line": example.line} if hasattr(example, "line") else {}
        yield json.dumps(place | task.to_json(example, one), ensure_ascii=False) + "\n"


def _predict(
    name: str, path: Path, use: Use, batch_size: int, device: str | None
) -> Iterator[tuple[Task[Any, Any], list[Any], list[Any]]]:
    """Load a model and read examples; yield the task, and examples with predictions, in parts."""
    task, model, inputs = load_task_model(name)
    cast(torch.nn.Module, model).to(find_device(device))
    examples = task.read(path, use)
    if use == "score":
        task.check(examples, path, model.config)
    with tqdm(total=len(examples), unit="examples", disable=None) as bar:
        for start in range(0, len(examples), EXAMPLES_PER_PART):
            part = examples[start : start + EXAMPLES_PER_PART]
            yield (
                task,
                part,
                predict_examples(task, model, inputs, part, batch_size=batch_size, bar=bar),
            )
