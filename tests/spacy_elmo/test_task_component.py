"""The `elmo_task` component: what it finds, what it shares, what it saves."""

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from task_cases import BANK, CAT, save_case

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.tasks import load_task_model, task
from hf_elmo.tasks.readers import Document, Frame, LabelledSentence, Pair, Question, TaggedSentence
from hf_elmo.tasks.task_inputs import WordInputs
from spacy_elmo.extensions import ROLES_KEY, Role

IN_PIPES = ["ner", "sentiment", "srl", "coref"]
OTHER_SETTINGS = {
    "char_activation": "tanh",
    "forget_bias": 0.5,
    "cell_clip": 7,
    "projection_clip": 7,
    "use_residual": False,
    "max_characters_per_token": 7,
    "sentence_start_word_id": 7,
    "sentence_end_word_id": 7,
    "char_padding_id": 7,
}
STATIC = {"static_vocab_size": 5, "static_size": 4}
AddTask = Callable[..., Any]


@pytest.fixture
def add_task(nlp: Language, tiny_model: ElmoModel, tmp_path: Path) -> AddTask:
    """Add the component with a tiny model of a task."""

    def add(name: str, component: str = "elmo_task", **fields: Any) -> Any:
        save_case(tiny_model, name, tmp_path / name, **{**STATIC, **fields})
        return nlp.add_pipe("elmo_task", component, config={"model": str(tmp_path / name)})

    return add


def make_doc(nlp: Language, *, has_space: bool = False) -> Doc:
    """Two sentences, "sat" and "bank" being predicates; perhaps with white space as a token."""
    words = [*CAT[:3], *([" \n"] if has_space else []), *CAT[3:], *BANK]
    starts = [False] * len(words)
    starts[0] = starts[-len(BANK)] = True
    pos = ["VERB" if word in ("sat", "bank") else "NOUN" for word in words]
    return Doc(nlp.vocab, words=words, sent_starts=starts, pos=pos)


def predict(component: Any, examples: list[Any]) -> list[Any]:
    """What the saved model finds by itself."""
    return task.predict(*load_task_model(component.source_name), examples)


def list_roles(doc: Doc) -> list[Role]:
    return doc._.srl if ROLES_KEY in doc.user_data else []


def tell(doc: Doc) -> tuple[Any, ...]:
    """All that the component may have set."""
    ents = [(ent.label_, ent.start, ent.end) for ent in doc.ents]
    roles = [(r.predicate.i, r.label, r.span.start, r.span.end) for r in list_roles(doc)]
    clusters = {name: [(s.start, s.end) for s in group] for name, group in doc.spans.items()}
    return ents, {name: round(x, 5) for name, x in doc.cats.items()}, roles, clusters


def test_entities_are_those_of_the_model(nlp: Language, add_task: AddTask) -> None:
    component = add_task("ner")
    sentences = [TaggedSentence(CAT, []), TaggedSentence(BANK, [])]
    first, second = predict(component, sentences)
    expected = [(s.label, s.start, s.end + 1) for s in first]
    expected += [(s.label, s.start + len(CAT), s.end + 1 + len(CAT)) for s in second]
    doc = component(make_doc(nlp))
    assert tell(doc)[0] == expected != []
    assert doc.has_annotation("ENT_IOB")


def test_labels_are_the_mean_over_sentences(nlp: Language, add_task: AddTask) -> None:
    component = add_task("sentiment")
    _, model, inputs = load_task_model(component.source_name)
    examples = [LabelledSentence(words, "") for words in (CAT, BANK)]
    one, other = task.predict(component.load().task, model, inputs, examples, find=model.rank)
    doc = component(make_doc(nlp))
    assert doc.cats == pytest.approx({name: (one[name] + other[name]) / 2 for name in one})


def test_labels_leave_those_of_others(nlp: Language, add_task: AddTask) -> None:
    doc = make_doc(nlp)
    doc.cats = {"NEWS": 1.0}
    labels = add_task("sentiment")(doc).cats
    assert labels["NEWS"] == 1.0
    assert len(labels) > 1


def test_roles_are_those_of_each_predicate(nlp: Language, add_task: AddTask) -> None:
    component = add_task("srl")
    first, second = predict(component, [Frame(CAT, 3, []), Frame(BANK, 1, [])])
    expected = [(3, s.label, s.start, s.end + 1) for s in first]
    expected += [(8, s.label, s.start + 7, s.end + 8) for s in second]
    assert tell(component(make_doc(nlp)))[2] == expected != []


def test_predicates_may_be_named(nlp: Language, add_task: AddTask) -> None:
    component = add_task("srl")
    doc = Doc(nlp.vocab, words=CAT)
    with pytest.raises(ValueError, match="Expected a doc with known predicates"):
        component(doc)
    doc.spans["predicates"] = [doc[3:4], doc[:0]]
    (found,) = predict(component, [Frame(CAT, 3, [])])
    assert [(r.label, r.span.start) for r in component(doc)._.srl] == [
        (s.label, s.start) for s in found
    ]


def test_predicates_may_be_other_parts_of_speech(
    nlp: Language, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    save_case(tiny_model, "srl", tmp_path / "srl", **STATIC)
    config = {"model": str(tmp_path / "srl"), "predicate_pos": ["NOUN"]}
    component = nlp.add_pipe("elmo_task", config=config)
    doc = Doc(nlp.vocab, words=CAT, pos=["VERB", "NOUN", *["VERB"] * (len(CAT) - 2)])
    (found,) = predict(component, [Frame(CAT, 1, [])])
    assert [(r.predicate.i, r.label) for r in component(doc)._.srl] == [(1, s.label) for s in found]


def test_parts_of_speech_that_spacy_does_not_know_are_refused(nlp: Language) -> None:
    with pytest.raises(ValueError, match=r"Expected predicate_pos such as VERB .*, got {'VBD'}"):
        nlp.add_pipe("elmo_task", config={"model": "x", "predicate_pos": ["VERB", "VBD"]})


def test_the_predicate_is_the_first_word_of_its_span(nlp: Language, add_task: AddTask) -> None:
    component, doc = add_task("srl"), make_doc(nlp, has_space=True)
    doc.spans["predicates"] = [doc[3:5]]  # white space, and a word
    assert {role.predicate.i for role in component(doc)._.srl} == {4}


def test_entities_and_labels_are_scored_as_spacy_scores_its_own(
    nlp: Language, add_task: AddTask
) -> None:
    ner, sentiment = (add_task(name, component=name) for name in ("ner", "sentiment"))
    gold = sentiment(ner(make_doc(nlp)))
    best = max(gold.cats, key=gold.cats.__getitem__)
    gold.cats = {label: float(label == best) for label in gold.cats}
    gold.ents = gold.ents[1:]
    scores = nlp.evaluate([Example(make_doc(nlp), gold)])
    assert scores["ents_p"] == pytest.approx(len(gold.ents) / (len(gold.ents) + 1))
    assert scores["cats_micro_f"] == 1
    assert add_task("coref").score([]) == {}


def test_the_model_is_loaded_when_the_pipeline_is_initialized(nlp: Language) -> None:
    nlp.add_pipe("elmo_task", config={"model": "absent"})
    with pytest.raises(OSError, match="got 'absent'"):
        nlp.initialize()


def test_clusters_of_an_earlier_run_are_removed(nlp: Language, add_task: AddTask) -> None:
    doc = make_doc(nlp)
    for name in ("coref_clusters_99", "coref_clusters_gold"):
        doc.spans[name] = [doc[0:1], doc[2:3]]
    add_task("coref")(doc)
    assert "coref_clusters_99" not in doc.spans
    assert "coref_clusters_gold" in doc.spans


def test_clusters_are_those_of_the_document(nlp: Language, add_task: AddTask) -> None:
    component = add_task("coref")
    (clusters,) = predict(component, [Document("", [CAT, BANK], [])])
    doc = component(make_doc(nlp))
    assert tell(doc)[3] == {
        f"coref_clusters_{number}": [(start, end + 1) for start, end in cluster]
        for number, cluster in enumerate(clusters, start=1)
    }
    assert len(clusters) > 0
    assert tell(component(doc)) == tell(doc)


def test_pairs_are_labelled(nlp: Language, add_task: AddTask) -> None:
    component = add_task("entailment")
    cat, bank = Doc(nlp.vocab, words=CAT), Doc(nlp.vocab, words=[*BANK, " "])
    with pytest.raises(ValueError, match=r"Expected a task of single texts.* entail\(pairs\)"):
        nlp("A cat")
    labels = component.entail([(cat, bank), (bank, cat)])
    best = predict(component, [Pair(CAT, BANK, ""), Pair(BANK, CAT, "")])
    assert [max(each, key=each.get) for each in labels] == best
    with pytest.raises(ValueError, match="Expected a doc with words"):
        component.entail([(cat, nlp.make_doc(""))])
    with pytest.raises(TypeError, match="Expected a doc, got 'A cat"):
        component.entail([(cat, "A cat.")])
    with pytest.raises(ValueError, match="Expected a model of the task squad, got one of entail"):
        component.answer([(cat, bank)])


def test_questions_are_answered(nlp: Language, add_task: AddTask) -> None:
    component = add_task("squad")
    question, text = nlp.make_doc("Who sat"), Doc(nlp.vocab, words=["\n", *CAT])
    answer, other = component.answer(iter([(question, text), (nlp.make_doc("Where"), text)]))
    asked = Question("", "", CAT, [], ["Who", "sat"], [], None)
    ((start, end),) = predict(component, [asked])
    assert (answer.span.start, answer.span.end) == (start + 1, end + 2)
    assert 0 < answer.score < 1
    assert isinstance(other.span, Span)


@pytest.mark.parametrize("name", IN_PIPES)
def test_white_space_is_no_word(name: str, nlp: Language, add_task: AddTask) -> None:
    component = add_task(name)
    plain, spaced = component(make_doc(nlp)), component(make_doc(nlp, has_space=True))
    assert plain.cats == pytest.approx(spaced.cats)
    words = [
        [
            str(span).replace(" \n ", "")
            for span in (*doc.ents, *(r.span for r in list_roles(doc)), *chain(*doc.spans.values()))
        ]
        for doc in (plain, spaced)
    ]
    assert words[0] == words[1]
    assert words[0] or plain.cats


@pytest.mark.parametrize("name", IN_PIPES)
def test_streams_are_as_docs_one_by_one(name: str, nlp: Language, add_task: AddTask) -> None:
    component = add_task(name)
    docs = [make_doc(nlp), nlp.make_doc(""), make_doc(nlp, has_space=True), nlp.make_doc(" ")]
    alone = [tell(component(doc.copy())) for doc in docs]
    assert [tell(doc) for doc in component.pipe(docs, batch_size=3)] == alone


@pytest.mark.parametrize("name", IN_PIPES)
@pytest.mark.parametrize("is_same", [True, False])
def test_layers_are_shared_if_the_weights_are_the_same(
    name: str,
    is_same: bool,
    nlp: Language,
    add_task: AddTask,
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    component = add_task(name)
    expected = tell(component(make_doc(nlp)))
    elmo = nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}}, first=True)
    if not is_same:
        with torch.no_grad():
            next(elmo.model.shims[0].load().model.parameters()).add_(1.0)
    calls: list[int] = []
    compute = WordInputs._compute

    def count(inputs: WordInputs, sentences: list[list[str]]) -> Iterator[torch.Tensor]:
        calls.append(len(sentences))
        return compute(inputs, sentences)

    monkeypatch.setattr(WordInputs, "_compute", count)
    (doc,) = nlp.pipe([make_doc(nlp)])
    assert tell(doc) == expected
    assert bool(calls) != is_same


@pytest.mark.parametrize("name", IN_PIPES)
def test_what_is_saved_finds_the_same(
    name: str, nlp: Language, add_task: AddTask, tmp_path: Path
) -> None:
    component = add_task(name)
    expected = tell(nlp(make_doc(nlp)))
    nlp.to_disk(tmp_path / "saved")
    for path in (tmp_path / name).iterdir():
        path.unlink()
    again = spacy.load(tmp_path / "saved")
    assert tell(again(make_doc(again))) == expected
    other = spacy.blank("xx")
    copied = other.add_pipe("elmo_task", config={"model": "nowhere"})
    copied.from_bytes(component.to_bytes())
    assert tell(other(make_doc(other))) == expected
    third = pickle.loads(pickle.dumps(again))
    assert tell(third(make_doc(third))) == expected


def test_roles_live_in_stored_docs(nlp: Language, add_task: AddTask) -> None:
    doc = add_task("srl")(make_doc(nlp))
    (stored,) = DocBin(docs=[doc], store_user_data=True).get_docs(nlp.vocab)
    assert tell(stored)[2] == tell(doc)[2] != []


def test_a_name_is_needed(nlp: Language) -> None:
    nlp.add_pipe("elmo_task")
    with pytest.raises(ValueError, match="Expected a trained model for component 'elmo_task'"):
        nlp("A cat.")


def test_errors_go_to_the_pipelines_handler(nlp: Language, add_task: AddTask) -> None:
    add_task("srl")
    seen: list[str] = []
    nlp.set_error_handler(lambda name, *_: seen.append(name))
    assert len(list(nlp.pipe(["A cat.", make_doc(nlp)], batch_size=1))) == 1
    assert seen == ["elmo_task"]


def test_errors_of_any_kind_go_to_the_handler(
    nlp: Language, add_task: AddTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    component = add_task("srl")
    monkeypatch.setattr(component, "_annotate", fail)
    seen: list[tuple[Any, list[Doc], Exception]] = []
    component.set_error_handler(lambda name, pipe, docs, error: seen.append((pipe, docs, error)))
    doc = make_doc(nlp)
    assert list(component.pipe([doc])) == []
    ((pipe, docs, error),) = seen
    assert (pipe, docs, type(error)) == (component, [doc], RuntimeError)


def test_earlier_entities_stay(nlp: Language, add_task: AddTask) -> None:
    component = add_task("ner")
    expected = tell(component(make_doc(nlp)))[0]
    doc = make_doc(nlp)
    _, start, end = expected[0]
    doc.set_ents([Span(doc, start, end, label="RULE")])
    assert tell(component(doc))[0] == [("RULE", start, end), *expected[1:]]


def test_blocked_tokens_stay_blocked(nlp: Language, add_task: AddTask) -> None:
    component = add_task("ner")
    expected = tell(component(make_doc(nlp)))[0]
    doc = make_doc(nlp)
    _, start, end = expected[0]
    doc.set_ents([], blocked=[doc[start:end]])
    component(doc)
    assert tell(doc)[0] == expected[1:]
    assert {(token.ent_iob_, token.ent_type_) for token in doc[start:end]} == {("B", "")}


def test_roles_of_changed_tokens_are_refused(nlp: Language, add_task: AddTask) -> None:
    doc = add_task("srl")(make_doc(nlp))
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    with pytest.raises(ValueError, match="split or merged"):
        _ = doc._.srl


@pytest.mark.filterwarnings("ignore:.*W101")  # Doc.from_docs says so, too
def test_roles_of_docs_without_any_are_refused(nlp: Language, add_task: AddTask) -> None:
    doc = add_task("srl")(make_doc(nlp))
    for other in (doc[:2].as_doc(copy_user_data=True), Doc.from_docs([doc, doc]), make_doc(nlp)):
        with pytest.raises(ValueError, match="holds no semantic roles"):
            _ = other._.srl


@pytest.mark.filterwarnings("error")
def test_a_sourced_task_uses_its_own_model(
    nlp: Language, add_task: AddTask, tiny_folder: Path
) -> None:
    nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}})
    expected = tell(add_task("ner")(make_doc(nlp)))
    other = spacy.blank("xx")
    assert tell(other.add_pipe("elmo_task", source=nlp)(make_doc(other))) == expected


def test_layers_are_no_longer_shared_when_the_weights_have_changed(
    nlp: Language, add_task: AddTask, tiny_folder: Path
) -> None:
    expected = tell(add_task("sentiment")(make_doc(nlp)))
    elmo = nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}}, first=True)
    for _ in range(2):
        (doc,) = nlp.pipe([make_doc(nlp)])
        assert tell(doc) == expected
        with torch.no_grad():
            next(elmo.model.shims[0].load().model.parameters()).add_(1.0)


def test_layers_in_8_bits_are_not_shared(
    nlp: Language, add_task: AddTask, tiny_folder: Path
) -> None:
    component = add_task("sentiment")
    for quantization, is_shared in ((None, True), ("int8", False)):
        model = {"name": str(tiny_folder), "quantization": quantization}
        elmo = nlp.add_pipe("elmo", f"elmo-{quantization}", config={"model": model})
        assert component._is_same(elmo.source) is is_shared


def test_layers_of_another_computation_are_not_shared(
    nlp: Language, add_task: AddTask, tiny_folder: Path, tiny_model: ElmoModel
) -> None:
    component = add_task("sentiment")
    expected = tell(component(make_doc(nlp)))
    tiny_model.config.use_residual = not tiny_model.config.use_residual
    tiny_model.save_pretrained(tiny_folder)
    elmo = nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}}, first=True)
    (doc,) = nlp.pipe([make_doc(nlp)])
    assert tell(doc) == expected
    assert elmo.source.held.take(doc) is None


@pytest.mark.parametrize(("field", "value"), OTHER_SETTINGS.items())
def test_layers_of_a_bilm_with_another_setting_are_not_shared(
    field: str, value: Any, nlp: Language, add_task: AddTask, tiny_folder: Path
) -> None:
    component = add_task("sentiment")
    elmo = nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}}, first=True)
    assert component._is_same(elmo.source)
    config = component.load().model.elmo.config
    setattr(config, field, value)
    assert not component._is_same(elmo.source)


def test_layers_of_a_bilm_with_other_character_ids_are_not_shared(
    nlp: Language, add_task: AddTask, tiny_folder: Path
) -> None:
    component = add_task("sentiment")
    elmo = nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}}, first=True)
    component.load().inputs.tokenizer = ElmoTokenizer(map_boundary_words=False)
    assert not component._is_same(elmo.source)


def test_threads_that_share_a_component_load_its_model_once(
    add_task: AddTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    component, loads = add_task("ner"), []

    def load(name: str, device: torch.device) -> object:
        time.sleep(0.1)
        loads.append(name)
        return object()

    monkeypatch.setattr("spacy_elmo.task_component._load_model", load)
    with ThreadPoolExecutor(4) as threads:
        models = list(threads.map(lambda _: component.load(), range(4)))
    assert len(loads) == 1
    assert len({id(model) for model in models}) == 1


@pytest.mark.slow
def test_fork_of_a_process_with_many_threads_does_not_hang(
    add_task: AddTask, tmp_path: Path
) -> None:
    add_task("ner")
    code = f"""
import spacy, torch
torch.set_num_threads(4)
x = torch.ones(2000, 2000); x @ x
nlp = spacy.blank("xx")
nlp.add_pipe("elmo_task", config={{"model": {str(tmp_path / "ner")!r}}})
texts = ["a bank " * 500] * 8
ents = [len(doc.ents) for doc in nlp.pipe(texts)]
assert [len(doc.ents) for doc in nlp.pipe(texts, n_process=2, batch_size=2)] == ents
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)


@pytest.mark.slow
def test_a_packaged_pipeline_finds_the_same(
    nlp: Language, add_task: AddTask, tmp_path: Path
) -> None:
    add_task("ner")
    expected = tell(nlp(make_doc(nlp)))
    nlp.to_disk(tmp_path / "saved")
    (tmp_path / "packages").mkdir()
    command = [sys.executable, "-m", "spacy", "package", str(tmp_path / "saved")]
    command += [str(tmp_path / "packages"), "--name", "tasks", "--build", "none"]
    subprocess.run(command, check=True, capture_output=True)
    (package,) = tmp_path.glob("packages/*")
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation"]
    install += ["--target", str(target)]
    subprocess.run([*install, str(package)], check=True, capture_output=True)
    code = (
        "import spacy, sys; nlp = spacy.load('xx_tasks')\n"
        "from spacy.tokens import Doc\n"
        f"doc = nlp(Doc(nlp.vocab, words={[*CAT, *BANK]}, sent_starts="
        f"{[row in (0, len(CAT)) for row in range(len(CAT) + len(BANK))]}))\n"
        "print([(ent.label_, ent.start, ent.end) for ent in doc.ents])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(target), "PATH": ""},
    )
    assert result.stdout.strip() == str(expected[0])
