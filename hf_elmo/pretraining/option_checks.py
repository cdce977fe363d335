"""Refuse options that contradict each other, or those of the run that `--resume` continues."""

import glob
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import typer

from hf_elmo.bundled import resolve_name
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.corpus.commands import check_pipeline
from hf_elmo.language_model.models import load_vocabulary
from hf_elmo.language_model.vocabulary import PIECES_NAME, VOCABULARY_NAME
from hf_elmo.text.text_files import locate_file, measure_files
from hf_elmo.training.resume_checks import (
    MODEL_FILES,
    START_FILES,
    check_output,
    cut_path,
    fingerprint,
    hold_to_settings,
    list_checkpoints,
)

# Options that a resumed run must not change, because its state depends on them.
HELD_OPTIONS = (
    *("train", "input_format", "pipeline", "dataset", "dataset_config", "split", "column"),
    *("vocab_size", "units", "preset", "config", "from_model", "batch_size", "window"),
    *("accumulate", "negatives", "optimizer", "learning_rate", "schedule", "warmup_steps"),
    *("weight_decay", "char_noise", "ema", "seed", "valid", "dropout", "bfloat16"),
    "max_grad_norm",
)
# Files and folders that a run writes to its output.
OWN_NAMES = (
    *(*MODEL_FILES, *START_FILES, VOCABULARY_NAME, PIECES_NAME),
    *("checkpoint-*", "runs"),
)
# The first option of each pair has no effect if the second one is given.
UNUSED_OPTIONS = (
    *(("preset", "config"), ("preset", "from_model"), ("vocab_size", "vocabulary")),
    *(("dataset_config", "train"), ("split", "train"), ("column", "train")),
)


def check_options(context: typer.Context) -> None:
    """Refuse contradictory options, and options that differ from those of the resumed run."""
    options = context.params
    output = Path(options["output"])  # a string in typer 0.20
    if not 0 < options["epochs"] < math.inf:
        raise ValueError(f"Expected --epochs above 0 and finite, got {options['epochs']}.")
    if options["learning_rate"] is not None and not options["learning_rate"] > 0:
        raise ValueError(f"Expected --learning-rate above 0, got {options['learning_rate']}.")
    if not options["max_grad_norm"] >= 0:
        raise ValueError(
            f"Expected --max-grad-norm of 0 (no maximum) or above, got {options['max_grad_norm']}."
        )
    if options["ema"] == 1:
        raise ValueError("Expected --ema below 1: a decay of 1 keeps the first weights.")
    if options["patience"] is not None and not options["valid"]:
        raise ValueError("Expected --valid together with --patience.")
    if options["evaluate_every"] is not None and not options["valid"]:
        raise ValueError("Expected --valid together with --evaluate-every.")
    if options["save_every"] is not None and options["valid"]:
        raise ValueError(
            "Expected --evaluate-every in place of --save-every together with --valid: each "
            "evaluation writes a checkpoint."
        )
    if options["config"] is not None and options["from_model"] is not None:
        raise ValueError("Expected either --config or --from, got both.")
    if options["units"] != "characters" and options["from_model"] is not None:
        raise ValueError("Expected --units without --from: a model keeps its units.")
    if options["units"] != "characters" and options["char_noise"]:
        raise ValueError("Expected --char-noise for --units characters only.")
    if options["units"] == "pieces" and options["vocabulary"] is not None:
        raise ValueError("Expected --vocab-size with --units pieces, got --vocab.")
    if not options["resume"]:  # older versions allowed options without effect
        _refuse_unused_options(context)
        check_pipeline(options["input_format"], options["pipeline"])
    check_output(output, resume=options["resume"], others=(VOCABULARY_NAME, PIECES_NAME))


def _refuse_unused_options(context: typer.Context) -> None:
    """Refuse options that have no effect beside another one."""

    def is_given(name: str) -> bool:
        return getattr(context.get_parameter_source(name), "name", None) == "COMMANDLINE"

    flags = {option.name: option.opts[0] for option in context.command.params}
    for name, other in UNUSED_OPTIONS:
        if is_given(name) and context.params[other]:
            raise ValueError(f"Expected either {flags[name]} or {flags[other]}, got both.")
    source = context.params["from_model"]
    if source and is_given("vocab_size") and load_vocabulary(resolve_name(source)) is not None:
        raise ValueError(
            f"Expected --from without --vocab-size: {source} keeps its target words. Give --vocab "
            "to train with others."
        )


def _describe_files(patterns: Sequence[dict[str, int]]) -> str:
    """Describe the names, without folders, and the sizes of the files of several patterns."""
    found = [[(Path(name).name, size) for name, size in sizes.items()] for sizes in patterns]
    digest = hashlib.blake2b(json.dumps(found).encode(), digest_size=8)
    return f"{sum(map(len, found))} files, {digest.hexdigest()}"


def is_own_file(name: str, output: Path) -> bool:
    """Return whether a file is one that a run writes to its output, such as its vocabulary."""
    path, folder = Path(locate_file(name)), output.resolve()
    if not path.is_relative_to(folder):
        return False
    return any(fnmatch(path.relative_to(folder).parts[0], pattern) for pattern in OWN_NAMES)


def _check_overlap(train: Iterable[str], valid: Iterable[str], vocabulary: Path | None) -> None:
    """Refuse to train on the held-out text, or on the file of target words."""
    found = set(map(locate_file, train))
    others = [("--valid", name) for name in valid]
    others += [] if vocabulary is None else [("--vocab", str(vocabulary))]
    for option, name in others:
        if locate_file(name) in found:
            raise ValueError(
                f"Expected other files in --train than in {option}, got {name} in both. Give a "
                "pattern that does not match it, or move it."
            )


def hold_options(options: dict[str, Any]) -> None:
    """Write the options and descriptions of files, or compare them with those of a resumed run."""
    is_own = partial(is_own_file, output=Path(options["output"]))
    train = [
        measure_files([name], has_weights=True, leave_out=is_own) for name in options["train"] or ()
    ]
    valid = measure_files(options["valid"] or ())
    if not list_checkpoints(Path(options["output"])):  # older versions allowed it
        _check_overlap([name for sizes in train for name in sizes], valid, options["vocabulary"])
    contents: dict[str, str | int | list[int] | None] = {
        # By pattern: the last parts of two patterns can be equal, and their weights different.
        "train": [sum(sizes.values()) for sizes in train],
        "train names": _describe_files(train),
        "valid": sum(valid.values()),
        "valid names": _describe_files([valid]),
        "dataset": None,
        "config": None,
        "from": None,
    }
    # A folder that also holds the output changes during the run.
    place, output = Path(options["dataset"] or ""), Path(options["output"]).resolve()
    if options["dataset"] and place.is_dir() and not output.is_relative_to(place.resolve()):
        contents["dataset"] = sum(measure_files([f"{glob.escape(options['dataset'])}/**"]).values())
    held = {name: options[name] for name in HELD_OPTIONS}
    for name in ("train", "valid"):  # patterns, so that their folder may move
        held[name] = options[name] and [Path(pattern) for pattern in options[name]]
    for name in ("config", "from_model", "dataset", "pipeline"):
        held[name] = options[name] and cut_path(options[name])
    if options["config"]:
        contents["config"] = fingerprint(Path(options["config"]))
    if options["from_model"]:
        contents["from"] = fingerprint(Path(resolve_name(options["from_model"])))
    hold_to_settings(Path(options["output"]), held, contents)


def check_model(options: dict[str, Any], config: ElmoConfig) -> None:
    """Refuse options that do not fit the model."""
    if options["char_noise"] and not config.char_embedding_size and not options["resume"]:
        raise ValueError(
            f"Expected --char-noise with a model of characters, got {options['from_model']}."
        )
    if options["negatives"] >= config.vocab_size:
        raise ValueError(
            f"Expected --negatives below {config.vocab_size}, the number of target words, got "
            f"{options['negatives']}. With --negatives 0, the full softmax is used."
        )
