"""Static vectors of which some rows are trained, against a table that is trained as a whole."""

import copy

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from hf_elmo.tasks.layers.trained_vectors import TrainedVectors

ROWS = torch.tensor([5, 2])
IDS = torch.tensor([[2, 0, 5], [5, 5, 0]])


def make_both() -> tuple[nn.Embedding, TrainedVectors]:
    torch.manual_seed(0)
    whole = nn.Embedding(7, 3, padding_idx=0)
    return whole, TrainedVectors(copy.deepcopy(whole), ROWS)


def train(vectors: nn.Embedding) -> dict[str, Tensor]:
    optimizer = torch.optim.Adam(vectors.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        vectors(IDS).square().sum().backward()
        optimizer.step()
    return vectors.state_dict()


def test_training_and_saving_are_those_of_the_whole_table() -> None:
    whole, vectors = make_both()
    before = whole.weight.detach().clone()
    assert vectors.weight.shape == (3, 3)
    trained = train(vectors)
    assert_close(trained, train(whole), rtol=0, atol=0)
    assert (trained["weight"] != before).any(dim=1).tolist() == [0, 0, 1, 0, 0, 1, 0]


def test_words_that_are_not_trained_have_vectors() -> None:
    whole, vectors = make_both()
    ids = torch.arange(7)
    assert_close(vectors(ids), whole(ids), rtol=0, atol=0)


def test_other_rows_are_trained_next() -> None:
    whole, vectors = make_both()
    train(vectors)
    again = TrainedVectors(vectors, torch.tensor([0, 5, 6]))
    assert_close(again.state_dict(), train(whole), rtol=0, atol=0)
    again.weight.detach().fill_(7)
    assert again.state_dict()["weight"].eq(7).all(dim=1).tolist() == [1, 0, 0, 0, 0, 1, 1]


def test_a_table_of_all_vectors_is_loaded() -> None:
    _, vectors = make_both()
    table = torch.randn(7, 3)
    assert str(vectors.load_state_dict({"weight": table})) == "<All keys matched successfully>"
    assert_close(vectors.weight, nn.Parameter(table[[0, 2, 5]]))
    assert_close(vectors.state_dict()["weight"], table)
    ids = torch.arange(1, 7)
    assert_close(copy.deepcopy(vectors)(ids), table[ids])


def test_the_trained_rows_alone_are_loaded() -> None:
    _, vectors = make_both()
    vectors.load_state_dict({"weight": torch.ones(3, 3)})
    assert vectors.weight.eq(1).all()
