"""How fast the task models of the preset "cpu" are beside their biLM, of which layers are kept.

OMP_NUM_THREADS=2 python benchmarks/tasks.py
python benchmarks/tasks.py --training --tasks squad

Weights are random, and the text is cut into pieces of the length that a task usually has.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.inference.embedding import embed_layers
from hf_elmo.inference.layer_cache import LayerCache
from hf_elmo.tasks import TASKS
from hf_elmo.tasks.labels import Span
from hf_elmo.tasks.modeling import ElmoTaskModel, load_bilm
from hf_elmo.tasks.readers import Document, Frame, LabelledSentence, Pair, Question, TaggedSentence
from hf_elmo.tasks.task import Task, predict
from hf_elmo.tasks.task_inputs import WordInputs

TEXT = Path(__file__).parents[1] / "tests" / "data" / "lighthouse.txt"
WORDS = [word for line in TEXT.read_text("utf-8").splitlines() for word in line.split()]
STATIC = {"static_vocab_size": 50_000, "static_size": 100}
NER_TYPES, NUM_ROLES, NUM_CLASSES = ("LOC", "MISC", "ORG", "PER"), 29, 5


class Load(NamedTuple):
    """What a task is measured on.

    Attributes:
        make: Makes the example of a number.
        count: Examples.
        unit: What is counted: words, or examples by their name.
        target: Units a second on two cores, beside the biLM.
    """

    make: Callable[[int], Any]
    count: int
    unit: str
    target: int


def cut(number: int, length: int) -> list[str]:
    """Cut some words out of the text; of other numbers, others."""
    start = number * 37 % (len(WORDS) - length)
    return WORDS[start : start + length]


def vary(number: int) -> int:
    """Vary the length of sentences from 8 to 36 words."""
    return 8 + number * 11 % 29


def make_question(number: int) -> Question:
    """Make a question on a passage of 150 words, of which five in a row have the same."""
    passage = cut(number // 5, 150)
    return Question("", "", passage, [], cut(number, 12), [], (number % 100, number % 100 + 2))


def make_document(number: int) -> Document:
    """Make a document of 90 sentences, 2,000 words, with a pair of mentions in each sentence."""
    sentences = [cut(90 * number + row, vary(row)) for row in range(90)]
    starts = [sum(map(len, sentences[:row])) for row in range(90)]
    return Document("", sentences, [[(start, start), (start + 3, start + 5)] for start in starts])


LOADS = {
    "ner": Load(
        lambda n: TaggedSentence(cut(n, vary(n)), [Span(NER_TYPES[n % 4], n % 5, n % 5 + 1)]),
        1000,
        "words",
        5000,
    ),
    "sentiment": Load(
        lambda n: LabelledSentence(cut(n, vary(n)), str(n % NUM_CLASSES)), 1000, "words", 5000
    ),
    "srl": Load(
        lambda n: Frame(cut(n, vary(n)), 3, [Span(f"ARG{n % NUM_ROLES}", 0, 2)]),
        600,
        "words",
        1500,
    ),
    "entailment": Load(lambda n: Pair(cut(n, 14), cut(n + 7, 8), str(n % 3)), 1000, "pairs", 300),
    "squad": Load(make_question, 200, "questions", 100),
    "coref": Load(make_document, 4, "words", 3000),
}


def make_model(
    task: Task, examples: list[Any], bilm: ElmoModel
) -> tuple[ElmoTaskModel, WordInputs]:
    """Make a model of random weights, and inputs that keep the biLM's layers."""
    torch.manual_seed(0)
    model = task.model(task.make_config("cpu", examples, bilm.config, **STATIC)).eval()
    load_bilm(model, bilm)
    words = list(dict.fromkeys(WORDS))
    tokenizer = ElmoTokenizer.from_pretrained(resolve_name(BUNDLED_NAME))
    return model, WordInputs(model, tokenizer, static_words=words, cache=LayerCache(2**30))


def train(task: Task, model: ElmoTaskModel, inputs: WordInputs, examples: list[Any]) -> None:
    """Take steps of training over all examples."""
    model.train()
    size = task.presets["cpu"].recipe.batch_size
    for start in range(0, len(examples), size):
        batch = examples[start : start + size]
        model.zero_grad()
        loss = model(**task.make_batch(batch, inputs), **task.label(batch, model.config)).loss
        loss.backward()


def measure(name: str, bilm: ElmoModel, *, training: bool, repeats: int) -> tuple[float, float]:
    """Measure units a second, of the task's model alone and of its biLM alone."""
    task, load = TASKS[name], LOADS[name]
    examples = [load.make(number) for number in range(load.count)]
    model, inputs = make_model(task, examples, bilm)
    sentences = [words for example in examples for words in task.texts(example)]
    distinct = list(dict.fromkeys(map(tuple, sentences)))
    start = time.perf_counter()
    for _ in embed_layers(distinct, bilm, inputs.tokenizer):
        pass
    num_words = sum(map(task.count_words, examples))
    bilm_speed = sum(map(len, distinct)) / (time.perf_counter() - start)
    bilm_speed *= 1 if load.unit == "words" else len(examples) / num_words
    inputs.fill(sentences)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        if training:
            train(task, model, inputs, examples)
        else:
            predict(task, model, inputs, examples)
        seconds.append(time.perf_counter() - start)
    units = num_words if load.unit == "words" else len(examples)
    return units / min(seconds), bilm_speed


def main(
    tasks: Annotated[str, typer.Option(help="Names between commas.")] = ",".join(LOADS),
    training: Annotated[
        bool, typer.Option("--training", help="Measure steps of training.")
    ] = False,
    repeats: Annotated[int, typer.Option(help="Of which the fastest counts.", min=1)] = 3,
) -> None:
    """Print a table."""
    bilm = ElmoModel.from_pretrained(resolve_name(BUNDLED_NAME))
    print(f"{torch.get_num_threads()} threads, {'training' if training else 'prediction'}")
    print("| task | unit | task model, units/s | target | biLM, units/s |")
    print("|---|---|---|---|---|")
    for name in tasks.split(","):
        speed, bilm_speed = measure(name, bilm, training=training, repeats=repeats)
        load = LOADS[name]
        print(f"| {name} | {load.unit} | {speed:,.0f} | {load.target:,} | {bilm_speed:,.0f} |")


if __name__ == "__main__":
    typer.run(main)
