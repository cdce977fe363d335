"""Tiny task models with tiny biLMs, and a few examples of each task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.tasks import TASKS
from hf_elmo.tasks.labels import Span
from hf_elmo.tasks.modeling import ElmoTaskModel, load_bilm
from hf_elmo.tasks.readers import Document, Frame, LabelledSentence, Pair, Question, TaggedSentence
from hf_elmo.tasks.task import Task
from hf_elmo.tasks.task_inputs import WordInputs
from hf_elmo.word_splitting import split_text

CAT = ["The", "old", "cat", "sat", "on", "it", "."]
BANK = ["No", "bank", "!"]
PASSAGE, OFFSETS = split_text("The old cat sat on it.")

EXAMPLES: dict[str, list[Any]] = {
    "ner": [TaggedSentence(CAT, [Span("A", 0, 2), Span("B", 5, 5)]), TaggedSentence(BANK, [])],
    "sentiment": [LabelledSentence(CAT, "3"), LabelledSentence(BANK, "0")],
    "entailment": [Pair(CAT, BANK, "neutral"), Pair(BANK, ["A", "bank"], "contradiction")],
    "srl": [Frame(CAT, 3, [Span("ARG1", 0, 2), Span("ARG2", 4, 5)]), Frame(BANK, 1, [])],
    "squad": [
        Question("1", "The old cat sat on it.", PASSAGE, OFFSETS, ["Who", "sat"], ["cat"], (1, 2)),
        Question("2", "The old cat", PASSAGE[:3], OFFSETS[:3], ["How"], ["old"], (1, 1)),
    ],
    "coref": [
        Document("a", [CAT, BANK], [[(0, 2), (5, 5)]]),
        Document("b", [BANK, CAT, CAT], [[(3, 5), (8, 8), (10, 12)], [(1, 1), (6, 6)]]),
    ],
}
SIZES: dict[str, dict[str, int]] = {
    "ner": {"lstm_size": 6, "char_size": 3, "num_char_filters": 4},
    "sentiment": {"hidden_size": 6},
    "entailment": {"hidden_size": 6},
    "srl": {"hidden_size": 6, "predicate_size": 3},
    "squad": {"hidden_size": 6, "char_size": 3, "num_char_filters": 4},
    "coref": {"lstm_size": 5, "hidden_size": 6, "feature_size": 3, "num_char_filters": 4},
}


@dataclass
class Case:
    """A task with a tiny model of random weights, in evaluation mode."""

    task: Task
    model: ElmoTaskModel
    inputs: WordInputs
    examples: list[Any]

    def make_batch(self, rows: list[int]) -> dict[str, Tensor]:
        """Make a batch with labels."""
        examples = [self.examples[row] for row in rows]
        batch = self.task.make_batch(examples, self.inputs)
        return batch | self.task.label(examples, self.model.config)


def make_case(bilm: ElmoModel, name: str, preset: str = "cpu", **fields: Any) -> Case:
    """Make a tiny model of a task over a biLM; of the static vectors, the last is of "cat"."""
    task, examples = TASKS[name], EXAMPLES[name]
    sizes = SIZES[name] if preset == "cpu" else {}
    config = task.make_config(preset, examples, bilm.config, **(sizes | fields))
    torch.manual_seed(0)
    model = task.model(config).eval()
    load_bilm(model, bilm)
    words = [f"w{row}" for row in range(config.static_vocab_size - 2)] + ["cat"]
    static_words = words if config.static_size else []
    inputs = WordInputs(model, ElmoTokenizer(), static_words=static_words)
    return Case(task, model, inputs, examples)


def save_case(bilm: ElmoModel, name: str, folder: Path, **fields: Any) -> Case:
    """Save such a model as training does; one of coreference links whatever it can."""
    case = make_case(bilm, name, **fields)
    if name == "coref":
        nn.init.constant_(case.model.pair_output[-1].bias, 5.0)
    case.model.save_pretrained(folder)
    case.inputs.save(folder)
    return case
