"""Run the biLM over successive windows, for training and bilm-tf's evaluation."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.modeling_outputs import ElmoState

from .losses import full_softmax_losses, sampled_softmax_losses


class WindowedLanguageModel(nn.Module):
    """Module that runs a biLM over successive windows, with a continuing LSTM state.

    Gradients end at the start of the window (truncated back-propagation through time). The state is
    not a buffer, because DistributedDataParallel would copy the state of the first process to all.

    Args:
        model: biLM and softmax.
        num_negatives: Number of negatives of the sampled softmax in training; None = full softmax.
        seed: Seed of the negatives, which also depend on window number and direction.
    """

    def __init__(
        self, model: ElmoForPreTraining, *, num_negatives: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.model = model
        self.num_negatives = num_negatives
        self.seed = seed
        self.state: ElmoState | None = None  # None = the next window starts from zeros
        self.num_windows = 0  # number of windows in training mode so far

    def forward(
        self,
        *,
        forward_inputs: Tensor,
        backward_inputs: Tensor,
        forward_targets: Tensor,
        backward_targets: Tensor,
        input_ids: Tensor | None = None,
        word_input_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the losses of one window, and advance to the next.

        Args:
            forward_inputs: 0 for `<S>`, 1 for `</S>`, else 2 + index in the distinct words, shape
                `(window, batch)`.
            backward_inputs: The same for the backward stream.
            forward_targets: Target ids, shape `(window, batch)`.
            backward_targets: The same for the backward stream.
            input_ids: Character ids of the distinct words, `(words, characters)`.
            word_input_ids: Ids of the distinct words in the lexicon, if there is one, `(words,)`.

        Returns:
            Losses in nats of the forward and the backward direction, shape `(window, batch)` each.
            The backward losses are None if the biLM is unidirectional.
        """
        tops = self.advance(forward_inputs, backward_inputs, input_ids, word_input_ids)
        directions = zip(tops, (forward_targets, backward_targets)[: len(tops)], strict=True)
        losses = [
            self._losses(top.flatten(0, 1), targets.flatten(), direction).view(targets.shape)
            for direction, (top, targets) in enumerate(directions)
        ]
        self.num_windows += self.training
        return losses[0], losses[1] if len(losses) > 1 else None

    def advance(
        self, forward_inputs: Tensor, backward_inputs: Tensor, *ids: Tensor | None
    ) -> list[Tensor]:
        """Run the biLM over one window, and store its LSTM state for the next window.

        Returns:
            The top layer of each direction, shape `(window, batch, projection_size)`.
        """
        bilm = self.model.elmo
        window, batch = forward_inputs.shape
        table = torch.cat([bilm.encode_boundaries(), bilm.encode_words(*ids)])
        state = (
            bilm.zero_state(batch, self.model.softmax.weight) if self.state is None else self.state
        )
        forward = F.embedding(forward_inputs.flatten(), table)
        backward = F.embedding(backward_inputs.flatten(), table) if state.backward else None
        outputs = bilm.run_lstms((forward, backward), [batch] * window, state, reverse=False)
        states = [new for _, new in outputs] + [None] * (state.backward is None)
        self.state = ElmoState(*states).map(Tensor.detach)
        return [layers[-1].view(window, batch, -1) for layers, _ in outputs]

    def _losses(self, hidden: Tensor, targets: Tensor, direction: int) -> Tensor:
        hidden = F.dropout(hidden, self.model.config.dropout, self.training)
        weight, bias = self.model.softmax.weight, self.model.softmax.bias
        if self.num_negatives is None or not self.training:
            return full_softmax_losses(hidden, targets, weight, bias)
        # PyTorch's CPU generator uses only 32 bits of its seed.
        seed = random.Random(f"{self.seed} {self.num_windows} {direction}").getrandbits(32)
        generator = torch.Generator().manual_seed(seed)
        return sampled_softmax_losses(
            hidden,
            targets,
            weight,
            bias,
            num_negatives=self.num_negatives,
            generator=generator,
        )
