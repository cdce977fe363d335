from pathlib import Path

import pytest
from task_files import make_document, write

from hf_elmo.tasks.data.documents import Document, read_documents


def test_documents_are_read_without_lone_and_repeated_mentions(tmp_path: Path) -> None:
    cells = ["(1|(2)", "-", "(1)|1)", "(2)|(2)", "(3)|(3)"]
    assert read_documents(write(tmp_path, make_document(cells))) == [
        Document(
            "(x); part 0",
            [["w0", "w1"], ["w2", "w3", "w4"]],
            [[(0, 0), (3, 3)], [(0, 2), (2, 2)]],
        )
    ]


def test_documents_of_one_file_share_no_words_and_no_mentions(tmp_path: Path) -> None:
    text = make_document(["(1)", "(1)"]) + "#end document\n" + make_document(["(1)", "-", "(1)"])
    first, second = read_documents(write(tmp_path, text))
    assert first.clusters == [[(0, 0), (1, 1)]]
    assert second.clusters == [[(0, 0), (2, 2)]]


def test_words_between_documents_are_refused(tmp_path: Path) -> None:
    text = make_document(["(1)", "(1)"]) + "#end document\n\nx 0 0 w _ (1)\n"
    with pytest.raises(ValueError, match="expected #begin document, then columns"):
        read_documents(write(tmp_path, text))


def test_clusters_are_in_the_order_of_their_first_mentions(tmp_path: Path) -> None:
    cells = ["(a", "(b)", "_", "(b)", "(a)|a)"]  # b is the first that ends
    (document,) = read_documents(write(tmp_path, make_document(cells)))
    assert document.clusters == [[(0, 4), (4, 4)], [(1, 1), (3, 3)]]


def test_sentences_and_documents_without_words_are_left_out(tmp_path: Path) -> None:
    words = make_document(["-", "-", "-"]).replace("\n\n", "\n\n\n")
    text = f"#begin document (empty);\n\n#end document\n{words}"
    (document,) = read_documents(write(tmp_path, text))
    assert document.sentences == [["w0", "w1"], ["w2"]]
