"""All tasks by name, and the one of a saved model."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from hf_elmo.loading import check_name
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .coref import COREF
from .entailment import ENTAILMENT
from .modeling import ElmoTaskModel
from .ner import NER
from .sentiment import SENTIMENT
from .squad import SQUAD
from .srl import SRL
from .task import Task
from .words import STATIC_WORDS_NAME, WordInputs, read_static_words

HINT = "A task's model is trained by: python -m hf_elmo train TASK."
TASKS: dict[str, Task] = {
    task.name: task for task in (SQUAD, ENTAILMENT, SRL, COREF, NER, SENTIMENT)
}


def load_task_model(name: str, **options: Any) -> tuple[Task, ElmoTaskModel, WordInputs]:
    """Load a trained task model and what reads words for it.

    Args:
        name: A folder, or a name on the Hugging Face Hub.
        **options: For `from_pretrained`.

    Returns:
        The task, the model in evaluation mode, and what makes its inputs.

    Raises:
        OSError: If there is no model of that name.
        ValueError: If it is no model of a task.
    """
    try:
        check_name(name)
    except OSError as error:
        raise OSError(f"{error} {HINT}") from error
    config = AutoConfig.from_pretrained(name)
    task = find_task(config)
    model = task.model.from_pretrained(name, config=config, **options)
    return task, model, make_inputs(model, ElmoTokenizer.from_pretrained(name))


def find_task(config: PreTrainedConfig) -> Task:
    """Find the task of a configuration.

    Raises:
        ValueError: If it is no model's of a task.
    """
    for task in TASKS.values():
        if task.model.config_class.model_type == config.model_type:
            return task
    raise ValueError(
        f"Expected a model of a task ({', '.join(TASKS)}), got {config.name_or_path!r} of model "
        f"type {config.model_type!r}. {HINT}"
    )


def make_inputs(model: ElmoTaskModel, tokenizer: PreTrainedTokenizerBase) -> WordInputs:
    """Make what reads words for a model that was loaded by its name."""
    words = []
    if model.config.static_size:
        words = read_static_words(
            Path(str(cached_file(str(model.name_or_path), STATIC_WORDS_NAME)))
        )
    return WordInputs(model, tokenizer, static_words=words)
