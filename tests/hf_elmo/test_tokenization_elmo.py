"""Tests of the tokenizer: ids against hand-spelled words and the original programs."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    pipeline,
)

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer

BOW, EOW, PAD = 259, 260, 261

# Lexicons in the manner of ELMoForManyLangs; the ids of their entries are 1, 2, 3 ...
CHAR_VOCAB = ["a", "b", "é", "\n", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
WORD_VOCAB = ["<oov>", "<bos>", "<eos>", "ab", "\u2028", "\ud800", "abab"]
CODE_POINTS: dict[str, Any] = {
    "char_vocab": CHAR_VOCAB,
    "sentence_start_char_id": 5,
    "sentence_end_char_id": 6,
    "word_start_char_id": 10,  # <eow> and <bow> change places there
    "word_end_char_id": 9,
    "char_padding_id": 8,
    "sentence_start": "<bos>",
    "sentence_end": "<eos>",
    "unknown": "<oov>",
    "max_characters_per_token": 6,
}
KINDS: dict[str, dict[str, Any]] = {
    "bytes": {},
    "short bytes": {"max_characters_per_token": 5, "map_boundary_words": False},
    "code points": CODE_POINTS,
    "code points and words": {**CODE_POINTS, "word_vocab": WORD_VOCAB},
    "bytes and words": {"word_vocab": WORD_VOCAB, "unknown": "<oov>"},
    "words": {"characters": "none", "word_vocab": WORD_VOCAB, "unknown": "<oov>"},
}

SENTENCES = [["The", "bank"], [], ["A", "river", "bank", "<S>"]]

parametrize_kinds = pytest.mark.parametrize("kind", KINDS)


def spell(word: bytes, num_cells: int = 50) -> list[int]:
    """Spell a word by hand, as bilm-tf and AllenNLP do, shifted by one."""
    row = [BOW, *(byte + 1 for byte in word[: num_cells - 2]), EOW]
    return row + [PAD] * (num_cells - len(row))


def encode(tokenizer: ElmoTokenizer, words: list[str], name: str = "input_ids") -> list[Any]:
    ids: list[Any] = tokenizer(words, is_split_into_words=True)[name].tolist()
    return ids


# --- Words ---


@pytest.mark.parametrize(
    ("word", "spelled"),
    [
        ("The", b"The"),
        ("", b""),
        (" ", b" "),
        ("\u00a0", b"\xc2\xa0"),
        ("\n", b"\n"),
        ("New York", b"New York"),
        ("<pad>", b"<pad>"),
        ("[PAD]", b"[PAD]"),
        ("<UNK>", b"<UNK>"),
        ("\U0001f40d", b"\xf0\x9f\x90\x8d"),
        ("\ud83d", b""),  # a lone surrogate vanishes, its word does not
        ("a\udc0db", b"ab"),
        ("\0", b"\0"),
        ("x" * 48, b"x" * 48),
        ("x" * 10_000, b"x" * 48),
        ("é" * 25, "é".encode() * 24),
        ("a" + "é" * 25, b"a" + "é".encode() * 23 + b"\xc3"),  # cut within a character
    ],
)
def test_a_word_is_one_row_of_its_bytes(word: str, spelled: bytes) -> None:
    assert encode(ElmoTokenizer(), [word, "x"]) == [spell(spelled), spell(b"x")]


def test_boundary_words_are_the_boundaries() -> None:
    start, end = [BOW, 257, EOW, *[PAD] * 47], [BOW, 258, EOW, *[PAD] * 47]
    assert encode(ElmoTokenizer(), ["<S>", "</S>", "<s>"]) == [start, end, spell(b"<s>")]


def test_boundary_words_are_spelled_if_not_mapped() -> None:
    tokenizer = ElmoTokenizer(map_boundary_words=False)
    assert encode(tokenizer, ["<S>", "</S>"]) == [spell(b"<S>"), spell(b"</S>")]


@pytest.mark.parametrize(
    ("word", "row"),
    [
        ("ab", [10, 1, 2, 9, 8, 8]),
        ("", [10, 9, 8, 8, 8, 8]),
        ("éx\n", [10, 3, 7, 4, 9, 8]),
        ("abababab", [10, 1, 2, 1, 2, 9]),
        ("\ud800\U0001f40d", [10, 7, 7, 9, 8, 8]),
        ("<bos>", [10, 5, 9, 8, 8, 8]),
        ("<eos>", [10, 6, 9, 8, 8, 8]),
        ("<pad>", [10, 7, 7, 1, 7, 9]),
    ],
)
def test_code_points_are_looked_up(word: str, row: list[int]) -> None:
    assert encode(ElmoTokenizer(**CODE_POINTS), [word]) == [row]


def test_the_word_lexicon_is_asked_for_the_word_as_cut() -> None:
    tokenizer = ElmoTokenizer(**KINDS["code points and words"])
    words = ["ab", "\u2028", "\ud800", "other", "ababab", "<bos>"]
    assert encode(tokenizer, words, "word_input_ids") == [4, 5, 6, 1, 7, 2]


def test_the_word_lexicon_beside_bytes_is_asked_for_the_whole_word() -> None:
    tokenizer = ElmoTokenizer(**KINDS["bytes and words"], max_characters_per_token=6)
    assert encode(tokenizer, ["abab", "ababab"], "word_input_ids") == [7, 1]


def test_boundary_words_are_unknown_to_the_lexicon_if_not_mapped() -> None:
    tokenizer = ElmoTokenizer(**KINDS["code points and words"], map_boundary_words=False)
    assert encode(tokenizer, ["<bos>", "<eos>"], "word_input_ids") == [1, 1]


def test_the_last_of_equal_entries_counts() -> None:
    tokenizer = ElmoTokenizer(characters="none", word_vocab=["<UNK>", "a", "a"])
    assert encode(tokenizer, ["a"], "word_input_ids") == [3]


def test_without_characters_there_are_only_word_ids() -> None:
    batch = ElmoTokenizer(**KINDS["words"])(
        [["ab"], ["x", "ab"]], is_split_into_words=True, padding=True
    )
    assert set(batch) == {"word_input_ids", "attention_mask"}
    assert batch["word_input_ids"].tolist() == [[4, 0], [1, 4]]


# --- The original programs ---


@pytest.mark.parametrize("program", ["allennlp", "bilm"])
@pytest.mark.parametrize("model", ["tiny", "tinyF", "odd", "odd2", "train_tiny"])
def test_ids_equal_those_of_the_original_programs(shared: Path, program: str, model: str) -> None:
    path = shared / f"oracle/expected/{program}_{model}.npz"
    if not path.is_file():
        pytest.skip(f"{program} did not run this model")
    text = (shared / "oracle/expected/sentences.json").read_text(encoding="utf-8")
    sentences = json.loads(text)["batches"]
    with np.load(path) as expected:
        for key in [key for key in expected if key.endswith("/char_ids")]:
            ids = expected[key]
            batch = sentences[key.split("/")[1].split("_")[1]]
            if program == "bilm":  # there the boundaries are among the rows
                batch = [["<S>", *words, "</S>"] for words in batch]
            tokenizer = ElmoTokenizer(max_characters_per_token=ids.shape[2])
            encoded = tokenizer(batch, is_split_into_words=True, padding=True, return_tensors="np")
            np.testing.assert_array_equal(encoded["input_ids"], ids, err_msg=key)


def test_ids_equal_those_of_elmo_for_many_langs(shared: Path) -> None:
    folder = shared / "oracle/models/many_langs_wordchar"
    chars, words = read_dictionary(folder / "char.dic"), read_dictionary(folder / "word.dic")
    ids = {entry: row for row, entry in enumerate(chars, 1)}
    tokenizer = ElmoTokenizer(
        char_vocab=chars,
        word_vocab=words,
        sentence_start_char_id=ids["<bos>"],
        sentence_end_char_id=ids["<eos>"],
        word_start_char_id=ids["<eow>"],
        word_end_char_id=ids["<bow>"],
        char_padding_id=ids["<pad>"],
        sentence_start="<bos>",
        sentence_end="<eos>",
        unknown="<oov>",
    )
    text = (shared / "oracle/expected/many_langs_sentences.json").read_text(encoding="utf-8")
    sentences = [["<bos>", *words, "<eos>"] for words in json.loads(text)["s1"]]
    encoded = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="np")
    with np.load(shared / "oracle/expected/many_langs_wordchar.npz") as expected:
        is_word = expected["ids/mask"].astype(bool)
        assert (encoded["attention_mask"] == is_word).all()
        assert (encoded["input_ids"][is_word] == expected["ids/chars"][is_word] + 1).all()
        assert (encoded["word_input_ids"][is_word] == expected["ids/words"][is_word] + 1).all()


def read_dictionary(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [line.rpartition("\t")[0] or "\u3000" for line in lines]


# --- Texts ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n\u00a0", []),
        ("The bank, it's 3.14!", ["The", "bank", ",", "it", "'s", "3.14", "!"]),
        ("1,000 a.b 'q' x_1", ["1,000", "a", ".", "b", "'", "q", "'", "x_1"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs are marks, no letters
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("\U0001f1e9\U0001f1ea\u2764\ufe0f", ["\U0001f1e9\U0001f1ea", "\u2764\ufe0f"]),
        ("a\ud83db", ["a", "\ud83d", "b"]),
        ("<S>", ["<", "S", ">"]),
    ],
)
def test_a_text_is_split_into_words(text: str, words: list[str]) -> None:
    tokenizer = ElmoTokenizer()
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.tokenize(text) == words
    assert [text[start:end] for start, end in encoded["offset_mapping"]] == words
    assert encoded["input_ids"].tolist() == encode(tokenizer, words)


@pytest.mark.parametrize("name", ["map_boundary_words", "max_characters_per_token"])
def test_settings_that_the_tables_were_made_from_cannot_be_changed(name: str) -> None:
    tokenizer = ElmoTokenizer()
    with pytest.raises(AttributeError, match=f"{name} cannot be changed. Pass it to from_pre"):
        setattr(tokenizer, name, 20)
    tokenizer.word_pattern = "."


def test_the_word_pattern_can_be_set() -> None:
    tokenizer = ElmoTokenizer(word_pattern=r"\S*")
    assert tokenizer.tokenize("it's  <S> .") == ["it's", "<S>", "."]


# --- Batches ---


@parametrize_kinds
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_rows_are_zeros(kind: str, side: str) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind], padding_side=side)
    batch = tokenizer(SENTENCES, is_split_into_words=True, padding=True, return_tensors="np")
    mask = batch["attention_mask"]
    right = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert (mask == (right if side == "right" else right[:, ::-1])).all()
    for name in tokenizer.model_input_names:
        assert not batch[name][mask == 0].any()
        for row, words in enumerate(SENTENCES):
            assert batch[name][row][mask[row] == 1].tolist() == encode(tokenizer, words, name)


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({"padding": True}, 4),
        ({"padding": "longest", "pad_to_multiple_of": 3}, 6),
        ({"padding": True, "pad_to_multiple_of": 4}, 4),
        ({"padding": "max_length", "max_length": 7}, 7),
        ({"padding": True, "truncation": True, "max_length": 3}, 3),
        ({"padding": "max_length", "truncation": True, "max_length": 0}, 0),
    ],
)
@pytest.mark.parametrize("return_tensors", [None, "np", "pt"])
def test_padding_gives_one_width(
    options: dict[str, Any], width: int, return_tensors: str | None
) -> None:
    tokenizer = ElmoTokenizer()
    batch = tokenizer(SENTENCES, is_split_into_words=True, return_tensors=return_tensors, **options)
    assert tuple(batch["input_ids"].shape) == (3, width, 50)
    assert tuple(batch["attention_mask"].shape) == (3, width)


def test_padding_side_can_be_named_in_a_call() -> None:
    batch = ElmoTokenizer()(["a", "b c"], padding=True, padding_side="left")
    assert batch["attention_mask"].tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(("side", "words"), [("right", ["a", "b"]), ("left", ["b", "c"])])
def test_truncation_keeps_max_length_words(side: str, words: list[str]) -> None:
    tokenizer = ElmoTokenizer(truncation_side=side)
    encoded = tokenizer("a b c", truncation=True, max_length=2, return_offsets_mapping=True)
    assert tokenizer.decode(encoded["input_ids"]) == " ".join(words)
    assert encoded.word_ids() == ["abc".index(word) for word in words]
    assert encoded["offset_mapping"] == [(2 * i, 2 * i + 1) for i in encoded.word_ids()]


def test_model_max_length_truncates() -> None:
    encoded = ElmoTokenizer(model_max_length=2)(["a b c", "d"], truncation=True)
    assert [len(ids) for ids in encoded["input_ids"]] == [2, 1]


def test_without_padding_each_sentence_has_its_array() -> None:
    encoded = ElmoTokenizer()(SENTENCES, is_split_into_words=True)
    assert [ids.shape for ids in encoded["input_ids"]] == [(2, 50), (0, 50), (4, 50)]
    assert [mask.tolist() for mask in encoded["attention_mask"]] == [[1, 1], [], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("text", "is_split_into_words", "shape"),
    [
        ("a b", False, (1, 2, 50)),
        (["a", "b"], True, (1, 2, 50)),
        (("a", "b"), True, (1, 2, 50)),
        (np.array(["a", "b"]), True, (1, 2, 50)),
        (["a", "b"], False, (2, 1, 50)),
        ([["a"], ("b",)], True, (2, 1, 50)),
        ("", False, (1, 0, 50)),
        ([""], False, (1, 0, 50)),
        ([], True, (1, 0, 50)),  # one empty sentence, as transformers has it
        ([[]], True, (1, 0, 50)),
        ([], False, (0, 0, 50)),
    ],
)
def test_tensors_have_a_batch_axis(text: Any, is_split_into_words: bool, shape: Any) -> None:
    tokenizer = ElmoTokenizer()
    for return_tensors, dtype in (("pt", torch.int64), ("np", np.int64)):
        encoded = tokenizer(
            text,
            is_split_into_words=is_split_into_words,
            return_tensors=return_tensors,
            return_offsets_mapping=True,
        )
        assert tuple(encoded["input_ids"].shape) == shape
        assert tuple(encoded["attention_mask"].shape) == shape[:2]
        assert tuple(encoded["offset_mapping"].shape) == (*shape[:2], 2)
        assert encoded["input_ids"].dtype == dtype


@parametrize_kinds
@pytest.mark.parametrize("words", [["The", "ab", "<S>", "", "\ud800", "</S>", "a" * 60], []])
def test_spelling_gives_the_ids_of_a_call(kind: str, words: list[str]) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind])
    called = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    for name, ids in zip(("input_ids", "word_input_ids"), tokenizer.spell(words), strict=True):
        assert (ids is None) == (name not in called)
        assert ids is None or torch.equal(ids, called[name][0])


def test_further_outputs_come_on_request() -> None:
    encoded = ElmoTokenizer()(
        ["a b", "c"],
        padding=True,
        return_attention_mask=False,
        return_special_tokens_mask=True,
        return_length=True,
    )
    assert set(encoded) == {"input_ids", "special_tokens_mask", "length"}
    assert encoded["special_tokens_mask"].tolist() == [[0, 0], [0, 1]]
    assert encoded["length"] == [2, 1]


@given(st.lists(st.lists(st.text(st.characters(codec=None))), min_size=1), st.booleans())
def test_any_words_are_rows_of_their_own(sentences: list[list[str]], is_left: bool) -> None:
    tokenizer = ElmoTokenizer(map_boundary_words=False, max_characters_per_token=6)
    width = max(map(len, sentences))
    encoded = tokenizer(
        sentences,
        is_split_into_words=True,
        padding=True,
        padding_side="left" if is_left else "right",
    )
    for words, ids in zip(sentences, encoded["input_ids"].tolist(), strict=True):
        rows = [spell(word.encode("utf-8", "ignore"), 6) for word in words]
        padding = [[0] * 6] * (width - len(words))
        assert ids == (padding + rows if is_left else rows + padding)


# --- Where rows come from ---


def test_rows_know_their_words_in_a_text() -> None:
    tokenizer = ElmoTokenizer()
    encoded = tokenizer(["a", "bc  d"], padding=True, padding_side="left")
    assert tokenizer.is_fast  # else pipelines do not ask
    assert encoded.is_fast
    assert encoded.word_ids(0) == [None, 0]
    assert encoded.tokens(0) == [None, "a"]
    assert encoded.sequence_ids(0) == [None, 0]
    assert encoded.word_to_tokens(0, 0) == (1, 2)
    assert encoded.word_to_tokens(0, 1) is None
    assert encoded.token_to_word(0, 1) == 0
    assert encoded.token_to_sequence(1, 1) == 0
    assert encoded.token_to_chars(0, 0) is None
    assert encoded.token_to_chars(1, 1) == (4, 5)
    assert encoded.word_to_chars(1, 1) == (4, 5)
    assert encoded.char_to_token(1, 4) == 1
    assert encoded.char_to_token(1, 2) is None
    assert encoded.char_to_word(1, 1) == 0


def test_offsets_of_given_words_count_in_each_word() -> None:
    encoded = ElmoTokenizer()(
        [["New York", ""], ["a"]],
        is_split_into_words=True,
        padding=True,
        return_offsets_mapping=True,
    )
    assert encoded["offset_mapping"].tolist() == [[[0, 8], [0, 0]], [[0, 1], [0, 0]]]
    assert encoded.word_ids(1) == [0, None]


# --- Padding afterwards ---


@parametrize_kinds
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "give",
    [
        lambda encoded: encoded,
        dict,
        lambda encoded: [
            {name: ids[i] for name, ids in encoded.items()} for i in range(len(SENTENCES))
        ],
        lambda encoded: [
            {name: ids[i].tolist() for name, ids in encoded.items()} for i in range(len(SENTENCES))
        ],
        lambda encoded: [
            {name: torch.from_numpy(ids[i]) for name, ids in encoded.items()}
            for i in range(len(SENTENCES))
        ],
    ],
    ids=["encoding", "mapping", "arrays", "lists", "tensors"],
)
def test_padding_afterwards_equals_padding_at_once(
    kind: str, side: str, give: Callable[[Any], Any]
) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind], padding_side=side)
    encoded = tokenizer(SENTENCES, is_split_into_words=True)
    expected = tokenizer(SENTENCES, is_split_into_words=True, padding=True)
    padded = tokenizer.pad(give(encoded))
    assert list(padded) == list(expected)
    for name, ids in expected.items():
        assert padded[name].tolist() == ids.tolist()


def test_padding_afterwards_keeps_the_kind_of_tensor() -> None:
    tokenizer = ElmoTokenizer()
    ids = torch.from_numpy(tokenizer("a b")["input_ids"])
    assert isinstance(tokenizer.pad([{"input_ids": ids}])["input_ids"], torch.Tensor)
    assert isinstance(tokenizer.pad([{"input_ids": ids.numpy()}])["input_ids"], np.ndarray)


def test_padding_afterwards_takes_one_sentence() -> None:
    tokenizer = ElmoTokenizer()
    padded = tokenizer.pad(tokenizer("a b"), padding="max_length", max_length=3)
    assert padded["input_ids"].shape == (3, 50)
    assert padded["attention_mask"].tolist() == [1, 1, 0]


def test_padding_afterwards_can_leave_lengths_as_they_are() -> None:
    tokenizer = ElmoTokenizer()
    padded = tokenizer.pad(tokenizer(["a", "b c"]), padding=False)
    assert [len(ids) for ids in padded["input_ids"]] == [1, 2]


def test_padding_afterwards_marks_special_tokens_and_passes_on_the_rest() -> None:
    tokenizer = ElmoTokenizer()
    encoded = tokenizer(["a", "b c"], return_special_tokens_mask=True)
    padded = tokenizer.pad({**encoded, "label": [1, 0]}, return_tensors="pt")
    assert padded["special_tokens_mask"].tolist() == [[0, 1], [0, 0]]
    assert padded["label"].tolist() == [1, 0]


@parametrize_kinds
@pytest.mark.parametrize("is_already", [True, False])
def test_the_mask_of_special_tokens_marks_padding(kind: str, is_already: bool) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind])
    batch = tokenizer([["a", "b"], ["c"]], is_split_into_words=True, padding=True)
    for ids, expected in zip(batch[tokenizer.model_input_names[0]], [[0, 0], [0, 1]], strict=True):
        mask = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=is_already)
        assert mask == expected
    with pytest.raises(ValueError, match="Expected one text, got a pair"):
        tokenizer.get_special_tokens_mask(ids, ids)


@parametrize_kinds
def test_padding_that_was_stored_without_a_mask_is_still_padding(kind: str) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind])
    name = tokenizer.model_input_names[0]
    stored = tokenizer([["a", "b"], ["c"]], is_split_into_words=True, padding=True)[name].tolist()
    batch = tokenizer.pad([{name: ids} for ids in stored])
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]


@parametrize_kinds
def test_collators_take_what_the_tokenizer_gives(kind: str) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind])
    features = [
        {**tokenizer(words, is_split_into_words=True), "label": len(words)} for words in SENTENCES
    ]
    batch = DataCollatorWithPadding(tokenizer)(features)
    expected = tokenizer(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    assert batch.pop("labels").tolist() == [2, 0, 4]
    assert set(batch) == set(expected)
    for name in expected:
        assert torch.equal(batch[name], expected[name])


@pytest.mark.parametrize("side", ["right", "left"])
def test_labels_of_words_are_padded_along(side: str) -> None:
    tokenizer = ElmoTokenizer(padding_side=side)
    features = [
        {**tokenizer(words, is_split_into_words=True), "labels": [7] * len(words)}
        for words in SENTENCES
    ]
    batch = DataCollatorForTokenClassification(tokenizer)(features)
    assert torch.equal(batch["labels"] == 7, batch["attention_mask"] == 1)


def test_datasets_can_store_and_pad_ids() -> None:
    datasets = pytest.importorskip("datasets")
    tokenizer = ElmoTokenizer()
    words = datasets.Dataset.from_dict({"words": SENTENCES})
    options = {"remove_columns": ["words"], "load_from_cache_file": False}
    each = words.map(lambda item: tokenizer(item["words"], is_split_into_words=True), **options)
    batched = words.map(
        lambda items: tokenizer(items["words"], is_split_into_words=True), batched=True, **options
    )
    expected = tokenizer(SENTENCES, is_split_into_words=True, padding=True)
    for encoded in (each, batched):
        padded = tokenizer.pad(list(encoded))
        assert padded["input_ids"].tolist() == expected["input_ids"].tolist()


def test_a_pipeline_reads_texts(tiny_model: ElmoModel) -> None:
    extract = pipeline("feature-extraction", model=tiny_model, tokenizer=ElmoTokenizer())
    alone, empty = extract(["The bank .", ""])
    assert (np.shape(alone), np.shape(empty)) == ((1, 3, 16), (1, 0))


# --- Back to words ---


def test_ids_become_words_again() -> None:
    tokenizer = ElmoTokenizer()
    words = ["The", "", "\U0001f40d", "<S>", "</S>", "a b", "a" + "é" * 25]
    batch = tokenizer([words, ["x"]], is_split_into_words=True, padding=True, return_tensors="pt")
    back = [*words[:-1], "a" + "é" * 23 + "\ufffd"]
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][0]) == back
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][0, 0]) == "The"
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][1])[:2] == ["x", "[PAD]"]
    assert tokenizer.decode(batch["input_ids"], skip_special_tokens=True) == [" ".join(back), "x"]
    assert tokenizer.batch_decode(batch["input_ids"].tolist())[1] == "x" + " [PAD]" * 6
    assert tokenizer.decode(tokenizer("")["input_ids"]) == ""


def test_unknown_code_points_become_the_replacement_character() -> None:
    tokenizer = ElmoTokenizer(**KINDS["code points and words"])
    ids = encode(tokenizer, ["abx", "<bos>", "é"])
    assert tokenizer.convert_ids_to_tokens(ids) == ["ab\ufffd", "<bos>", "é"]


def test_lexicon_rows_become_words_again() -> None:
    tokenizer = ElmoTokenizer(**KINDS["words"])
    ids = tokenizer([["ab", "x"], ["abab"]], is_split_into_words=True, padding=True)
    ids = ids["word_input_ids"]
    assert tokenizer.decode(ids) == ["ab <oov>", "abab [PAD]"]
    assert tokenizer.decode(ids[1], skip_special_tokens=True) == "abab"
    assert tokenizer.convert_ids_to_tokens(4) == "ab"


@given(st.lists(st.text(max_size=12), min_size=1))
def test_short_words_survive_both_ways(words: list[str]) -> None:
    tokenizer = ElmoTokenizer(map_boundary_words=False)
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(words)) == words
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(words[0])) == words[0]


# --- The vocabulary ---


@pytest.mark.parametrize(
    ("kind", "size"), [("bytes", 262), ("code points and words", 11), ("words", 8)]
)
def test_the_vocabulary_is_that_of_the_first_input(kind: str, size: int) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind])
    vocab = tokenizer.get_vocab()
    assert len(tokenizer) == tokenizer.vocab_size == len(vocab) == size
    assert sorted(vocab.values()) == list(range(size))
    assert tokenizer.pad_token_id == vocab[tokenizer.pad_token] == 0
    assert tokenizer.all_special_ids == [0]


def test_the_vocabulary_cannot_grow() -> None:
    tokenizer = ElmoTokenizer()
    with pytest.raises(ValueError, match=r"Can't add \['<new>'\]"):
        tokenizer.add_tokens(["<new>"])


@pytest.mark.parametrize(
    "tokens",
    [
        {"cls_token": "<c>"},
        {"additional_special_tokens": ["<x>"]},
        {"pad_token": "<p>", "eos_token": "<e>"},
    ],
)
def test_special_tokens_that_cannot_be_added_leave_no_trace(
    tokens: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = ElmoTokenizer()
    with pytest.raises(ValueError, match="Can't add"):
        tokenizer.add_special_tokens(tokens)
    assert tokenizer.special_tokens_map == {"pad_token": "[PAD]"}
    tokenizer.save_pretrained(tmp_path)
    assert ElmoTokenizer.from_pretrained(tmp_path).special_tokens_map == {"pad_token": "[PAD]"}


@pytest.mark.parametrize("name", ["pad_token", "pad_token_id"])
def test_padding_cannot_be_taken_away(name: str, tmp_path: Path) -> None:
    tokenizer = ElmoTokenizer()
    setattr(tokenizer, name, getattr(tokenizer, name.replace("pad", "eos")))  # a stock idiom
    tokenizer.save_pretrained(tmp_path)
    for same in (tokenizer, ElmoTokenizer.from_pretrained(tmp_path)):
        assert (same.pad_token, same.pad_token_id) == ("[PAD]", 0)
    ids = tokenizer([["a"], ["b", "c"]], is_split_into_words=True, padding=True)["input_ids"]
    assert ids.shape == (2, 2, 50)


# --- Saving ---


@parametrize_kinds
def test_saving_and_loading_is_the_identity(kind: str, tmp_path: Path) -> None:
    tokenizer = ElmoTokenizer(
        **KINDS[kind], padding_side="left", model_max_length=9, word_pattern=r"\S+"
    )
    tokenizer.save_pretrained(tmp_path)
    loaded = ElmoTokenizer.from_pretrained(tmp_path)
    words = ["The", "<S>", "</S>", "<bos>", "ab", "abababab", "\n", "\u2028", "\ud800"]
    for name in tokenizer.model_input_names:
        assert encode(loaded, words, name) == encode(tokenizer, words, name)
    for name in ("char_vocab", "word_vocab", "model_input_names", "padding_side", "word_pattern"):
        assert getattr(loaded, name) == getattr(tokenizer, name)
    assert loaded.model_max_length == 9


def test_bytes_need_no_vocabulary_file(tmp_path: Path) -> None:
    ElmoTokenizer().save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer_config.json"]


@pytest.mark.parametrize("old", ["words", "code points"])
def test_a_tokenizer_saved_over_another_is_loaded_as_itself(tmp_path: Path, old: str) -> None:
    ElmoTokenizer(**KINDS[old]).save_pretrained(tmp_path)
    ElmoTokenizer().save_pretrained(tmp_path)
    for loaded in (ElmoTokenizer, AutoTokenizer):
        names = loaded.from_pretrained(tmp_path).model_input_names
        assert names == ElmoTokenizer().model_input_names


def test_saving_a_tokenizer_deletes_no_file(tmp_path: Path) -> None:
    files = [tmp_path / "char_vocab.json", tmp_path / "word_vocab.json"]
    for file in files:
        file.write_text("mine")
    ElmoTokenizer().save_pretrained(tmp_path)
    assert [file.read_text() for file in files] == ["mine", "mine"]
    assert ElmoTokenizer.from_pretrained(tmp_path).word_vocab is None


def test_a_vocabulary_is_read_if_an_early_version_wrote_it(tmp_path: Path) -> None:
    ElmoTokenizer(**KINDS["bytes and words"]).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    assert config.pop("vocabularies") == ["word_vocab"]
    path.write_text(json.dumps(config))
    assert ElmoTokenizer.from_pretrained(tmp_path).word_vocab == WORD_VOCAB


def test_a_vocabulary_is_a_list_with_an_entry_a_line(tmp_path: Path) -> None:
    ElmoTokenizer(**KINDS["words"]).save_pretrained(tmp_path)
    text = (tmp_path / "word_vocab.json").read_text(encoding="utf-8")
    assert json.loads(text) == WORD_VOCAB
    assert len(text.splitlines()) == len(WORD_VOCAB) + 2


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1, 2", "Expected a JSON list in"), ("{}", "a dict"), ('["<oov>", 1]', "list of strings")],
)
def test_a_broken_vocabulary_is_named(tmp_path: Path, content: str, message: str) -> None:
    ElmoTokenizer(**KINDS["words"]).save_pretrained(tmp_path)
    (tmp_path / "word_vocab.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        ElmoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["char_vocab", "word_vocab"])
def test_a_lost_vocabulary_is_no_reason_to_read_bytes(name: str, tmp_path: Path) -> None:
    ElmoTokenizer(**KINDS["code points and words"]).save_pretrained(tmp_path)
    (tmp_path / f"{name}.json").unlink()
    with pytest.raises(FileNotFoundError, match=f"Expected {name}.json beside tokenizer_config"):
        ElmoTokenizer.from_pretrained(tmp_path)


def test_another_vocabulary_can_be_named(tmp_path: Path) -> None:
    ElmoTokenizer().save_pretrained(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps(WORD_VOCAB))
    options = {"word_vocab_file": str(tmp_path / "mine.json"), "unknown": "<oov>"}
    assert ElmoTokenizer.from_pretrained(tmp_path, **options).word_vocab == WORD_VOCAB


def test_a_folder_without_a_tokenizer_gives_none(tmp_path: Path) -> None:
    ElmoConfig().save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"Expected a tokenizer_config\.json"):
        ElmoTokenizer.from_pretrained(tmp_path)


def test_auto_tokenizer_finds_it(tmp_path: Path) -> None:
    ElmoTokenizer(max_characters_per_token=20).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is ElmoTokenizer
    assert loaded.max_characters_per_token == 20


@parametrize_kinds
@pytest.mark.parametrize(
    "duplicate", [lambda tokenizer: pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy, copy.copy]
)
def test_copies_are_equal(kind: str, duplicate: Callable[[Any], Any]) -> None:
    tokenizer = ElmoTokenizer(**KINDS[kind])
    encoded = duplicate(tokenizer)(SENTENCES, is_split_into_words=True, padding=True)
    expected = tokenizer(SENTENCES, is_split_into_words=True, padding=True)
    for name, ids in expected.items():
        assert encoded[name].tolist() == ids.tolist()


# --- The configuration ---


def test_a_configuration_gives_cells_and_ids() -> None:
    config = ElmoConfig(
        char_vocab_size=len(CHAR_VOCAB) + 1,
        word_vocab_size=len(WORD_VOCAB) + 1,
        word_embedding_size=3,
        sentence_start_word_id=2,
        sentence_end_word_id=3,
        **{name: value for name, value in CODE_POINTS.items() if name.endswith(("_id", "_token"))},
        char_filters=[[1, 2]],
    )
    names = {"sentence_start": "<bos>", "sentence_end": "<eos>", "unknown": "<oov>"}
    tokenizer = ElmoTokenizer.from_config(
        config, char_vocab=CHAR_VOCAB, word_vocab=WORD_VOCAB, **names
    )
    expected = ElmoTokenizer(**KINDS["code points and words"])
    for name in ("input_ids", "word_input_ids"):
        words = ["ab", "<bos>", "\u2028", "x"]
        assert encode(tokenizer, words, name) == encode(expected, words, name)


def test_a_configuration_without_characters_gives_word_ids() -> None:
    config = ElmoConfig(
        char_embedding_size=0,
        word_vocab_size=8,
        word_embedding_size=3,
        sentence_start_word_id=2,
        sentence_end_word_id=3,
    )
    tokenizer = ElmoTokenizer.from_config(config, word_vocab=WORD_VOCAB, unknown="<oov>")
    assert tokenizer.model_input_names == ["word_input_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("sizes", "vocabs", "message"),
    [
        ({"char_vocab_size": 300}, {}, "Expected a char_vocab, since .* 300 rows"),
        ({}, {"word_vocab": WORD_VOCAB}, "Expected no word_vocab for a word table of 0 rows"),
        ({}, {"char_vocab": ["<oov>"] * 262}, "at most 261 entries in char_vocab"),
    ],
)
def test_vocabularies_must_fit_the_tables(
    sizes: dict[str, int], vocabs: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ElmoTokenizer.from_config(ElmoConfig(**sizes), unknown="<oov>", **vocabs)


# --- Mistakes ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_characters_per_token": 2}, "Expected max_characters_per_token above 2"),
        ({"word_start_char_id": 262}, "Expected word_start_char_id from 1 to 261, got 262"),
        ({"characters": "words"}, "got 'words'"),
        ({"characters": "none"}, "Expected a word_vocab with characters='none'"),
        ({"characters": "code_points"}, "characters='code_points' and no char_vocab"),
        ({"characters": "bytes", "char_vocab": ["<UNK>"]}, "characters='bytes' and a char_vocab"),
        ({"word_vocab": ["a"]}, "Expected '<UNK>' in word_vocab"),
        ({"char_vocab": ["a"]}, "Expected '<UNK>' in char_vocab"),
        ({"word_vocab": ["<UNK>", None]}, "Expected a list of strings as word_vocab"),
        ({"word_pattern": "("}, r"as word_pattern, got '\('"),
    ],
)
def test_arguments_must_agree(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElmoTokenizer(**arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["a", None], r"got None \(NoneType\) as text 1"),
        ([["a"]], r"got \['a'\] \(list\) as text 0. For lists of words"),
        ([["a", "b"]], r"got \['a', 'b'\] \(list\) as text 0. For lists of words"),
        ([("a b", "c")], r"got \('a b', 'c'\) \(tuple\) as text 0. A biLM reads one text at"),
        (3, r"Expected a list of texts, or one text; got 3 \(int\)"),
        (b"a", r"Expected a list of texts, or one text; got b'a' \(bytes\)"),
    ],
)
def test_texts_must_be_strings(text: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ElmoTokenizer()(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a b", r"Expected a list of words .*; got 'a b' \(str\)"),
        (["a", None], r"got None \(NoneType\) as word 1 of sentence 0"),
        ([["a"], ["b", 3]], r"got 3 \(int\) as word 1 of sentence 1"),
        ([["a"], "b"], r"Expected a list of words as sentence 1; got 'b' \(str\)"),
        (["a", ["b"]], r"got \['b'\] \(list\) as word 1 of sentence 0"),
        ([[["a"]]], r"got \['a'\] \(list\) as word 0 of sentence 0"),
        ([None], r"Expected a list of words as sentence 0; got None"),
        ({"a": 1}, r"got {'a': 1} \(dict\)"),
    ],
)
def test_words_must_be_strings(words: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ElmoTokenizer()(words, is_split_into_words=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_pair": "b"}, "got a pair. A biLM reads one text at a time, .* train entailment"),
        ({"return_overflowing_tokens": True}, "Expected no return_overflowing_tokens"),
        ({"stride": 2}, "Expected no stride"),
        ({"return_token_type_ids": True}, "Expected no return_token_type_ids"),
        ({"return_tensors": "pt"}, "one length for a tensor, got 1 to 2 words. Pass padding=True"),
        ({"padding": "max_length", "max_length": 1}, "one of 2. Pass truncation=True"),
        ({"truncation": True, "max_length": -1}, "max_length of at least 0 words, got -1"),
        ({"padding": True, "pad_to_multiple_of": 0}, "pad_to_multiple_of of at least 1"),
        ({"padding": True, "padding_side": "up"}, "padding_side 'left' or 'right', got 'up'"),
        ({"padding": True, "return_tensors": "tf"}, "tf"),
    ],
)
def test_options_must_make_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElmoTokenizer()(["a", "b c"], **options)


def test_misspelt_options_are_refused() -> None:
    with pytest.raises(TypeError, match=r"got \['paddding'\]"):
        ElmoTokenizer()("a", paddding=True)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"attention_mask": [1]}, r"Expected encoded sentences with input_ids .* \['attention_m"),
        ([], "got list"),
        ([{"input_ids": [[1, 2]]}], r"shape \(1, 50\) for a sentence of 1 words, got \(1, 2\)"),
        (
            [{"input_ids": [spell(b"a")], "attention_mask": [1, 1]}],
            r"Expected attention_mask of shape \(1,\)",
        ),
    ],
)
def test_only_encoded_sentences_are_padded(features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElmoTokenizer().pad(features)


def test_only_known_ids_become_words() -> None:
    with pytest.raises(ValueError, match="Expected ids from 0 to 7, got 8 to 8"):
        ElmoTokenizer(**KINDS["words"]).convert_ids_to_tokens(8)


def test_padding_is_decoded_as_the_padding_token_that_was_set_last() -> None:
    tokenizer = ElmoTokenizer()
    tokenizer.add_special_tokens({"pad_token": "[ZZ]"})
    batch = tokenizer([["a", "b"], ["c"]], is_split_into_words=True, padding=True)
    assert tokenizer.decode(batch["input_ids"][1]) == "c [ZZ]"
