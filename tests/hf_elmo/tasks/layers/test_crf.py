"""The CRF against the enumeration of all sequences of labels."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hf_elmo.tasks.labels import Scheme, find_spans, label_words, list_labels
from hf_elmo.tasks.layers.crf import (
    ConditionalRandomField,
    constrain_labels,
    find_best_paths,
    score_path,
    sum_paths,
)

LENGTHS = [4, 1, 0, 3]
NUM_LABELS = 3


def make_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores `(4, 5, 3)`, of which the last step is padding; labels, transitions and mask."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 5, NUM_LABELS, dtype=torch.float64, generator=generator)
    labels = torch.randint(NUM_LABELS, (4, 5), generator=generator)
    transitions = torch.randn(NUM_LABELS, NUM_LABELS, dtype=torch.float64, generator=generator)
    return scores, labels, transitions, torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def score_slowly(scores: Tensor, path: tuple[int, ...], transitions: Tensor) -> float:
    total = sum(float(scores[step, label]) for step, label in enumerate(path))
    return total + sum(float(transitions[pair]) for pair in itertools.pairwise(path))


def list_paths(length: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(NUM_LABELS), repeat=length))


@pytest.mark.parametrize("row", range(4))
def test_a_path_scores_the_sum_over_its_steps(row: int) -> None:
    scores, labels, transitions, mask = make_inputs()
    path = tuple(labels[row, : LENGTHS[row]].tolist())
    got = score_path(scores, labels, transitions, mask)[row]
    assert float(got) == pytest.approx(score_slowly(scores[row], path, transitions))


@pytest.mark.parametrize("row", range(4))
def test_the_sum_over_paths_equals_their_enumeration(row: int) -> None:
    scores, _, transitions, mask = make_inputs()
    paths = list_paths(LENGTHS[row])
    each = torch.tensor([score_slowly(scores[row], path, transitions) for path in paths])
    got = sum_paths(scores, transitions, mask)[row]
    assert float(got) == pytest.approx(float(each.double().logsumexp(0)), abs=1e-6)


def test_the_gradients_are_right() -> None:
    scores, labels, transitions, mask = make_inputs()
    scores.requires_grad_()
    transitions.requires_grad_()

    def compute(scores: Tensor, transitions: Tensor) -> Tensor:
        path = score_path(scores, labels, transitions, mask)
        return path - sum_paths(scores, transitions, mask)

    assert torch.autograd.gradcheck(compute, (scores, transitions))


def test_transitions_that_a_checkpoint_lacks_can_be_drawn() -> None:
    crf = ConditionalRandomField(NUM_LABELS)
    with torch.no_grad():
        crf.transitions.fill_(float("nan"))
    crf.reset_parameters()
    assert crf.transitions.isfinite().all()


def test_padding_gets_no_gradient() -> None:
    scores, labels, _, mask = make_inputs()
    scores.requires_grad_()
    crf = ConditionalRandomField(NUM_LABELS).double()
    crf(scores, labels, mask).sum().backward()
    assert scores.grad is not None
    assert not scores.grad[~mask].any()
    assert scores.grad[mask].all()


def test_the_likelihood_is_that_of_pytorch_crf() -> None:
    other = pytest.importorskip("torchcrf").CRF(NUM_LABELS, batch_first=True).double()
    scores, labels, transitions, mask = make_inputs()
    scores, labels, mask = scores[mask[:, 0]], labels[mask[:, 0]], mask[mask[:, 0]]
    with torch.no_grad():
        other.start_transitions.zero_()
        other.end_transitions.zero_()
        other.transitions.copy_(transitions)
    crf = ConditionalRandomField(NUM_LABELS).double()
    crf.load_state_dict({"transitions": transitions})
    assert_close(crf(scores, labels, mask), other(scores, labels, mask, reduction="none"))
    assert find_best_paths(scores, mask, transitions=transitions) == other.decode(scores, mask)


@pytest.mark.parametrize("is_constrained", [False, True])
@pytest.mark.parametrize("row", range(4))
def test_the_best_path_is_the_best_of_all(row: int, is_constrained: bool) -> None:
    scores, _, transitions, mask = make_inputs()
    transitions[0, 2] = 5.0  # so that constraints matter
    allowed = None
    paths = list_paths(LENGTHS[row])
    if is_constrained:  # 2 may only follow 1, and 0 not; no sentence begins with 2 or ends with 1
        allowed = torch.ones(3, 3, dtype=torch.bool)
        allowed[0, 2] = allowed[2, 2] = allowed[1, 0] = False
        paths = [
            path
            for path in paths
            if (2, 2) not in itertools.pairwise(path)
            and (0, 2) not in itertools.pairwise(path)
            and (1, 0) not in itertools.pairwise(path)
            and path[:1] != (2,)
            and path[-1:] != (1,)
        ]
    best = max(paths, key=lambda path: score_slowly(scores[row], path, transitions))
    got = find_best_paths(scores, mask, transitions=transitions, allowed=allowed)[row]
    assert got == list(best)


def test_a_batch_without_tokens_has_empty_paths() -> None:
    scores, mask = torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)
    assert find_best_paths(scores, mask, transitions=torch.zeros(3, 3)) == [[], []]
    assert sum_paths(scores, torch.zeros(3, 3), mask).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scheme", ["BIO", "BIOUL"])
def test_the_constraints_allow_what_spans_can_be_and_nothing_else(scheme: Scheme) -> None:
    labels = list_labels(["A", "B"], scheme)
    allowed = constrain_labels(labels)
    for path in itertools.product(range(len(labels)), repeat=3):
        written = [labels[number] for number in path]
        is_right = label_words(find_spans(written), 3, scheme) == written
        is_allowed = all(allowed[pair] for pair in itertools.pairwise((0, *path, 0)))
        assert is_allowed == is_right, written


def test_the_best_path_of_a_long_text_is_that_in_double_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 20_000, 9, generator=generator)
    transitions = torch.randn(9, 9, generator=generator)
    mask = torch.ones(1, 20_000, dtype=torch.bool)
    exact = find_best_paths(scores.double(), mask, transitions=transitions.double())
    assert find_best_paths(scores, mask, transitions=transitions) == exact


def test_half_precision_changes_neither_likelihood_nor_gradients_nor_path() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(4, 100, 9, generator=generator).bfloat16()
    labels = torch.randint(9, (4, 100), generator=generator)
    mask = torch.ones(4, 100, dtype=torch.bool)
    crf = ConditionalRandomField(9).bfloat16()

    def compute(crf: ConditionalRandomField, scores: Tensor) -> tuple[Tensor, Tensor]:
        scores = scores.detach().requires_grad_()
        likelihood = crf(scores, labels, mask)
        return likelihood.double(), torch.autograd.grad(likelihood.sum(), scores)[0].double()

    found, paths = compute(crf, scores), find_best_paths(scores, mask, transitions=crf.transitions)
    scores, crf = scores.double(), crf.double()
    expected = compute(crf, scores)
    assert_close(found[0], expected[0], rtol=1e-3, atol=0)
    assert_close(found[1], expected[1], rtol=0, atol=0.01)
    assert paths == find_best_paths(scores, mask, transitions=crf.transitions)
