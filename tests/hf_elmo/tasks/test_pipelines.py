"""transformers' pipelines over the task models."""

from pathlib import Path
from typing import Any

import pytest
from task_cases import save_case
from transformers import pipeline

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.tasks import PIPELINES, load_task_model
from hf_elmo.tasks.task import predict

# Of each task the input of a pipeline that is the first example of the fixtures, and the same as
# text; an input without any word.
INPUTS: dict[str, tuple[Any, Any, Any]] = {
    "ner": ({"text": ["The", "old", "cat", "sat", "on", "it", "."]}, "The old cat sat on it.", ""),
    "sentiment": (
        {"text": ["The", "old", "cat", "sat", "on", "it", "."]},
        "The old cat sat on it.",
        "",
    ),
    "entailment": (
        {
            "text": ["The", "old", "cat", "sat", "on", "it", "."],
            "text_pair": ["No", "bank", "!"],
        },
        {"text": "The old cat sat on it.", "text_pair": "No bank!"},
        {"text": "", "text_pair": ""},
    ),
    "srl": (
        {"text": ["The", "old", "cat", "sat", "on", "it", "."], "predicates": [3]},
        {"text": "The old cat sat on it.", "predicates": [12]},
        {"text": "", "predicates": []},
    ),
    "squad": (
        {"question": ["Who", "sat"], "context": ["The", "old", "cat", "sat", "on", "it", "."]},
        {"question": "Who sat", "context": "The old cat sat on it."},
        None,
    ),
    "coref": (
        {"sentences": [["The", "old", "cat", "sat", "on", "it", "."], ["No", "bank", "!"]]},
        {"sentences": ["The old cat sat on it.", "No bank!"]},
        {"sentences": [" "]},
    ),
}
TEXT = "The old cat sat on it."


@pytest.fixture
def saved(tiny_model: ElmoModel, task_name: str, tmp_path: Path) -> Path:
    """A saved model of a task, with static vectors."""
    static = {"static_vocab_size": 5, "static_size": 4}
    save_case(tiny_model, task_name, tmp_path / "model", elmo_at="both", **static)
    return tmp_path / "model"


def load_pipeline(task_name: str, folder: Path) -> Any:
    return pipeline(f"elmo-{task_name}", model=str(folder), device="cpu")


def tell(task_name: str, result: Any) -> Any:
    """Write a result of a pipeline as the model's `predict` does, with characters for words."""
    if task_name == "ner":
        return [(one["entity_group"], one["start"], one["end"]) for one in result]
    if task_name == "srl":
        return [(one["entity_group"], one["start"], one["end"]) for one in result[0]["roles"]]
    if task_name == "squad":
        return result["start"], result["end"]
    if task_name == "coref":
        return [[(m["sentence"], m["start"], m["end"]) for m in cluster] for cluster in result]
    return result["label"]


def place(task_name: str, found: Any, offsets: list[tuple[int, int]], length: int) -> Any:
    """Turn what a model found, in words, into characters of the text."""
    if task_name in ("ner", "srl"):
        return [(span.label, offsets[span.start][0], offsets[span.end][1]) for span in found]
    if task_name == "squad":
        return offsets[found[0]][0], offsets[found[1]][1]
    if task_name == "coref":
        return [
            [(int(a >= length), offsets[a][0], offsets[b][1]) for a, b in cluster]
            for cluster in found
        ]
    return found


def test_a_pipeline_finds_what_the_loaded_model_predicts(task_name: str, saved: Path) -> None:
    pipe = load_pipeline(task_name, saved)
    assert type(pipe) is PIPELINES[f"elmo-{task_name}"]
    given, text, _ = INPUTS[task_name]
    task, model, inputs = load_task_model(str(saved))
    (example,) = pipe.preprocess(given)["examples"]
    (found,) = predict(task, model, inputs, [example])
    cat = [(0, 3), (4, 7), (8, 11), (12, 15), (16, 18), (19, 21), (21, 22)]
    offsets = [*cat, (0, 2), (3, 7), (7, 8)]
    assert tell(task_name, pipe(text)) == place(task_name, found, offsets, 7)


def test_batches_and_words_change_no_result(task_name: str, saved: Path) -> None:
    pipe = load_pipeline(task_name, saved)
    given, text, empty = INPUTS[task_name]
    several = [text, given, text] if empty is None else [text, given, empty, text]
    alone = [pipe(one) for one in several]
    batched = pipe(several, batch_size=2)
    assert [drop_scores(one) for one in batched] == [drop_scores(one) for one in alone]
    assert len(str(batched)) > 50


def drop_scores(result: Any) -> Any:
    if isinstance(result, dict) and "score" in result:
        return {name: value for name, value in result.items() if name != "score"}
    return result


def test_the_code_of_the_card_makes_the_pipeline(
    task_name: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved.parent)
    code = (saved / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    pipe, text = load_pipeline(task_name, saved), INPUTS[task_name][1]
    pipe.device = names["pipe"].device  # a GPU if there is one
    pipe.model.to(pipe.device)
    assert names["pipe"](text) == pipe(text)


def test_a_pipeline_is_saved_with_all_it_reads(task_name: str, saved: Path, tmp_path: Path) -> None:
    pipe = load_pipeline(task_name, saved)
    pipe.save_pretrained(tmp_path / "again")
    text = INPUTS[task_name][1]
    assert load_pipeline(task_name, tmp_path / "again")(text) == pipe(text)


@pytest.mark.parametrize("task_name", ["sentiment"])
def test_labels_come_with_their_probabilities(task_name: str, saved: Path) -> None:
    pipe = load_pipeline(task_name, saved)
    labels = pipe(TEXT, top_k=None)
    assert sum(one["score"] for one in labels) == pytest.approx(1.0)
    assert pipe(TEXT) == labels[0]
    assert labels[0]["score"] >= labels[1]["score"]


@pytest.mark.parametrize("task_name", ["sentiment"])
def test_no_label_or_fewer_are_refused(task_name: str, saved: Path) -> None:
    with pytest.raises(ValueError, match=r"Expected top_k above 0, .* got -1"):
        load_pipeline(task_name, saved)(TEXT, top_k=-1)


@pytest.mark.parametrize("task_name", ["ner"])
def test_unknown_options_are_refused(task_name: str, saved: Path) -> None:
    pipe = load_pipeline(task_name, saved)
    with pytest.raises(TypeError, match=r"options of this pipeline \(none\), got top_k"):
        pipe(TEXT, top_k=3)


@pytest.mark.parametrize("task_name", ["ner"])
def test_the_class_serves_the_name_that_the_hub_knows(task_name: str, saved: Path) -> None:
    pipe = pipeline(
        "token-classification", str(saved), device="cpu", pipeline_class=PIPELINES["elmo-ner"]
    )
    assert pipe(TEXT) == load_pipeline(task_name, saved)(TEXT)


@pytest.mark.parametrize("task_name", ["ner", "sentiment", "entailment", "srl", "coref"])
def test_a_text_is_split_by_the_pattern_of_the_tokenizer(task_name: str, saved: Path) -> None:
    ElmoTokenizer(word_pattern=r"\S+").save_pretrained(saved)
    given = {"text": TEXT, "predicates": [0], "sentences": [TEXT]}
    given |= {"text_pair": TEXT} if task_name == "entailment" else {}
    (example,) = load_pipeline(task_name, saved).preprocess(given)["examples"]
    place = {"entailment": "hypothesis", "coref": "sentences"}.get(task_name, "words")
    words = ["The", "old", "cat", "sat", "on", "it."]
    assert getattr(example, place) in (words, [words])


@pytest.mark.parametrize("task_name", ["srl"])
def test_predicates_may_come_from_an_iterator(task_name: str, saved: Path) -> None:
    pipe = load_pipeline(task_name, saved)
    words = ["The", "cat", "sat"]
    found = [pipe({"text": words, "predicates": given}) for given in ([2], iter([2]))]
    assert found[0] == found[1] != []


@pytest.mark.parametrize(
    ("task_name", "given", "message"),
    [
        ("ner", ["a", 3], "Expected a dictionary with text, got 3"),
        ("ner", {"text": 3}, "Expected a text or a list of words, got 3"),
        ("srl", {"text": TEXT, "predicates": [5]}, r"Expected a list of predicates, first char"),
        ("srl", {"text": TEXT, "predicates": 4}, r"Expected a list of predicates, .* got 4"),
        ("entailment", "A cat.", "Expected a dictionary with text and text_pair"),
        ("sentiment", {"text": TEXT, "text_pair": TEXT}, "Expected one text, because"),
        ("ner", {"text": TEXT, "text_pair": TEXT}, "Expected one text, because"),
        ("coref", {"sentences": TEXT}, "Expected sentences as a list of texts, got a string"),
        ("squad", {"question": "Who?", "context": " "}, "Expected a question and a context"),
    ],
)
def test_wrong_inputs_are_refused(saved: Path, task_name: str, given: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        load_pipeline(task_name, saved)(given)
