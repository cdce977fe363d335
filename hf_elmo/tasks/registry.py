"""All tasks by name, and loading of trained models."""

from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig
from transformers.utils.hub import cached_file

from hf_elmo.stored_model import HUB_OPTIONS, load_config
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .coref import CorefTask
from .entailment import EntailmentTask
from .modeling import ElmoTaskModel
from .ner import NerTask
from .sentiment import SentimentTask
from .squad import SquadTask
from .srl import SrlTask
from .static_vectors import STATIC_WORDS_NAME, read_static_words
from .task import Task
from .task_inputs import WordInputs

HINT = "A task's model is trained by: python -m hf_elmo train TASK."
ALL: tuple[Task[Any, Any], ...] = (
    *(SquadTask(), EntailmentTask(), SrlTask(), CorefTask(), NerTask(), SentimentTask()),
)
TASKS = {task.name: task for task in ALL}


class TaskModel(NamedTuple):
    """A task, its trained model, and the object that makes the model's inputs."""

    task: Task[Any, Any]
    model: ElmoTaskModel
    inputs: WordInputs


def load_task_model(name: str, **options: Any) -> TaskModel:
    """Load a trained task model and the object that makes its inputs.

    Args:
        name: A folder, or a name on the Hugging Face Hub.
        **options: Options of `from_pretrained`.

    Raises:
        OSError: If there is no model of that name.
        ValueError: If the model is not a task model.
    """
    hub = {key: value for key, value in options.items() if key in HUB_OPTIONS}
    try:
        config = load_config(name, **hub)
    except OSError as error:
        raise OSError(f"{error} {HINT}") from error
    task = find_task(config)
    model = task.model.from_pretrained(name, config=config, **options)
    tokenizer = ElmoTokenizer.from_pretrained(name, **hub)
    return TaskModel(task, model, make_inputs(model, tokenizer, **hub))


def find_task(config: PreTrainedConfig) -> Task[Any, Any]:
    """Find the task of a configuration.

    Raises:
        ValueError: If the configuration is not that of a task model.
    """
    for task in TASKS.values():
        if task.model.config_class.model_type == config.model_type:
            return task
    raise ValueError(
        f"Expected a model of a task ({', '.join(TASKS)}), got {config.name_or_path!r} of model "
        f"type {config.model_type!r}. {HINT}"
    )


def make_inputs(model: ElmoTaskModel, tokenizer: ElmoTokenizer, **options: Any) -> WordInputs:
    """Make the `WordInputs` of a model that was loaded by its name.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        **options: `HUB_OPTIONS` with which the model was loaded.

    Raises:
        ValueError: If the model has static vectors, but no name to find their words by, or the file
            beside it has other words.
    """
    words: list[str] = []
    if model.config.static_size:
        name = str(model.name_or_path)
        if not name:
            raise ValueError(
                "Expected a model that was loaded by its name: the words of its static vectors lie "
                "beside it. Save it, and `inputs.save(folder)`, and load it from there."
            )
        if (commit := getattr(model.config, "_commit_hash", None)) is not None:
            options["revision"] = commit  # a pipeline passes no revision
        path = Path(str(cached_file(name, STATIC_WORDS_NAME, **options)))
        config = model.config
        words = read_static_words(path, config.static_vocab_size - 1, config.static_checksum)
    return WordInputs(model, tokenizer, static_words=words)
