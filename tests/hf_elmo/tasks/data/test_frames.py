import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from task_files import strip, write

from hf_elmo.tasks.data.frames import Frame, read_frames
from hf_elmo.tasks.data.labels import Span


@pytest.mark.parametrize("place", ["1.9", "true", '"1"', "1e400"])
def test_a_position_is_an_integer(place: str, tmp_path: Path) -> None:
    line = f'{{"tokens": ["a", "b"], "frames": [{{"v": {place}, "args": []}}]}}'
    with pytest.raises(ValueError, match="v and args of integers"):
        read_frames(write(tmp_path, line, "data.jsonl"))


FRAME = Frame(["The", "cat", "sat"], 2, [Span("ARG1", 0, 1)])


def test_frames_are_read_from_json_lines_bare_ones_too(tmp_path: Path) -> None:
    line = (
        '\n{"tokens": ["The", "cat", "sat"], "frames": [{"v": 2, "args": [["ARG1", 0, 1], '
        '["V", 2, 2]]}, {"v": 1, "args": [["V", 1, 1]]}]}\n'
    )
    bare = Frame(["The", "cat", "sat"], 1, [])
    frames = read_frames(write(tmp_path, line, "srl.jsonl"))
    assert strip(frames) == [FRAME, bare]
    assert [frame.line for frame in frames] == [2, 2]


def test_a_few_predicates_may_be_outside_of_their_spans(tmp_path: Path) -> None:
    line = (
        '{"tokens": ["Go", "on"], "frames": [{"v": 0, "args": [["V", 0, 1]]}, '
        '{"v": 1, "args": [["V", 0, 0]]}]}\n'
    )
    assert [one.predicate for one in read_frames(write(tmp_path, line, "srl.jsonl"))] == [0, 1]


def test_frames_are_read_from_compressed_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "srl.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"tokens": ["Go"], "frames": [{"v": 0, "args": []}]}'))
    assert strip(read_frames(path)) == [Frame(["Go"], 0, [])]


VERBS: dict[str, list[list[Any]]] = {  # spans V of ten frames with predicate 1
    "no spans": [[]] * 10,
    "spans of several words": [["V", 0, 1]] * 10,
    "some other spans": [["V", 1, 1]] * 6 + [["V", 0, 0]] * 4,
}


@pytest.mark.parametrize("verbs", VERBS.values(), ids=VERBS.keys())
def test_many_frames_are_read_if_most_predicates_are_in_their_spans(
    verbs: list[list[Any]], tmp_path: Path
) -> None:
    frames = [{"v": 1, "args": [verb] if verb else []} for verb in verbs]
    text = json.dumps({"tokens": ["Go", "on"], "frames": frames})
    assert len(read_frames(write(tmp_path, text, "srl.jsonl"))) == 10


def test_frames_are_read_from_columns(tmp_path: Path) -> None:
    row = "nw/x 0 {} {} NN (S* - - - - * {} -\n"
    rows = [
        row.format(0, "The", "(ARG1*"),
        row.format(1, "cat", "*)"),
        row.format(2, "sat", "(V*)"),
    ]
    assert strip(read_frames(write(tmp_path, "#begin document (x);\n" + "".join(rows)))) == [FRAME]


@pytest.mark.parametrize(
    "cells",
    [
        ["(ARG0*)", "*"],  # no V
        ["(V*)", "(V*)"],
        ["*", "(V*"],
        ["(V*)", "*)"],
        ["(V*", "(ARG0*)"],
    ],
)
def test_roles_of_columns_are_one_v_and_spans_that_end(cells: list[str], tmp_path: Path) -> None:
    rows = [f"x 0 {place} w NN * - - - - * {cell} -\n" for place, cell in enumerate(cells)]
    with pytest.raises(ValueError, match=r"line 1: expected roles such as .*, one of them V"):
        read_frames(write(tmp_path, "".join(rows)))


def test_columns_without_coreference_are_refused(tmp_path: Path) -> None:
    rows = ["nw/x 0 0 The NN (S* - - - - * (V*)\n", "nw/x 0 0 The NN (S* - - - - * (V*) (V*)\n"]
    for row in rows:
        with pytest.raises(ValueError, match="line 1: expected coreference, or -, in the last"):
            list(read_frames(write(tmp_path, row)))
