"""All tasks by name, and the one of a saved model."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig
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
    check_name(name)
    config = AutoConfig.from_pretrained(name)
    for task in TASKS.values():
        if task.model.config_class.model_type == config.model_type:
            model = task.model.from_pretrained(name, config=config, **options)
            words = []
            if config.static_size:
                words = read_static_words(Path(str(cached_file(name, STATIC_WORDS_NAME))))
            tokenizer = ElmoTokenizer.from_pretrained(name)
            return task, model, WordInputs(model, tokenizer, static_words=words)
    raise ValueError(
        f"Expected a model of a task ({', '.join(TASKS)}), got {name!r} of model type "
        f"{config.model_type!r}. Train one: python -m hf_elmo train TASK."
    )
