import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_elmo.mix_report import collect_mixes, draw_table, make_mix_logger, plot_mixes

LISTENER = {"@architectures": "spacy_elmo.ElmoListener.v1"}
ENCODER = {
    "@architectures": "spacy.MaxoutWindowEncoder.v2",
    "width": 8,
    "window_size": 1,
    "maxout_pieces": 2,
    "depth": 1,
}


@pytest.fixture
def pipeline(nlp: Language, tiny_folder: Path) -> Language:
    """A pipeline with three mixes, of which one has other weights."""
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}})
    tok2vec = {
        "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
        "elmo": LISTENER,
        "encode": ENCODER,
        "elmo_output": LISTENER,
    }
    tagger = nlp.add_pipe("tagger", config={"model": {"tok2vec": LISTENER}})
    nlp.add_pipe("tagger", "wide", config={"model": {"tok2vec": tok2vec}})
    example = Example.from_dict(Doc(nlp.vocab, words=["a", "b"]), {"tags": ["X", "Y"]})
    nlp.initialize(lambda: [example])
    listener = tagger.model.get_ref("tok2vec")
    listener.set_param("mix", np.log([1, 1, 2]).astype("f") / listener.attrs["learn_rate_scale"])
    return nlp


def test_mixes_are_found_with_their_places(pipeline: Language) -> None:
    mixes = collect_mixes(pipeline)
    places = [("tagger", "input"), ("wide", "input"), ("wide", "output")]
    assert [(mix.component, mix.position) for mix in mixes] == places
    assert mixes[0].shares == pytest.approx([0.25, 0.25, 0.5])
    assert mixes[1].shares == pytest.approx([1 / 3] * 3)


def test_mixes_of_replaced_listeners_are_found(pipeline: Language) -> None:
    before = collect_mixes(pipeline)
    pipeline.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    assert collect_mixes(pipeline) == before


def test_table_has_a_row_for_each_mix(pipeline: Language) -> None:
    lines = draw_table(collect_mixes(pipeline)).strip().splitlines()
    assert lines[0].split() == ["component", "position", "words", "LSTM", "1", "LSTM", "2", "gamma"]
    assert lines[2].split() == ["tagger", "input", "0.250", "0.250", "0.500", "1.000"]
    assert len(lines) == 5


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot_is_written(pipeline: Language, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    plot_mixes(collect_mixes(pipeline), tmp_path / f"mix.{suffix}")
    assert (tmp_path / f"mix.{suffix}").stat().st_size > 1000


def test_failed_plot_leaves_an_old_one_as_it_was(pipeline: Language, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plots" / "mix.unknown"
    plot.parent.mkdir()
    plot.write_text("old")
    with pytest.raises(ValueError, match="unknown"):
        plot_mixes(collect_mixes(pipeline), plot)
    assert list(plot.parent.iterdir()) == [plot]
    assert plot.read_text() == "old"


def test_logger_shows_mixes_with_the_scores(pipeline: Language) -> None:
    seen: list[Any] = []
    inner = (seen.append, lambda: seen.append("finished"))
    stdout = io.StringIO()
    log, finish = make_mix_logger(lambda nlp, stdout, stderr: inner)(pipeline, stdout, stdout)
    info: dict[str, Any] = {"other_scores": {"tag_acc": 1.0}}
    log(None)
    log(info)
    finish()
    assert seen == [None, info, "finished"]
    assert info["other_scores"]["tagger_input_elmo_2"] == pytest.approx(0.5)
    assert "ELMo at tagger input: 0.250 0.250 0.500, gamma 1.000\n" in stdout.getvalue()
