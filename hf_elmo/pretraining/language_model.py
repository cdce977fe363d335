"""The biLM over windows of text: what a training step and bilm-tf's evaluation compute."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..modeling_elmo import WORDS_PER_CHUNK, ElmoForPreTraining, ElmoState
from ..recurrence import run_stacks
from .losses import full_softmax_losses, sampled_softmax_losses


class WindowedLanguageModel(nn.Module):
    """Run a biLM over successive windows, its state carried from each to the next.

    Gradients end at the window's start (truncated back-propagation through time). The state is no
    buffer: DistributedDataParallel would replace every process's with that of the first.

    Args:
        model: biLM and softmax.
        num_negatives: Negatives of the sampled softmax, in training; None = the full softmax.
        seed: Seed of the negatives, which are a function of it and the number of the window.
    """

    def __init__(
        self, model: ElmoForPreTraining, *, num_negatives: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.model = model
        self.num_negatives = num_negatives
        self.seed = seed
        self.state: ElmoState | None = None
        self.num_windows = 0

    def forward(
        self,
        *,
        input_ids: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        forward_inputs: Tensor,
        backward_inputs: Tensor,
        forward_targets: Tensor,
        backward_targets: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the losses of one window and step to the next.

        Args:
            input_ids: Characters of the distinct words, `(words, characters)`.
            word_input_ids: Lexicon rows of the distinct words, `(words,)`.
            forward_inputs: 0 for `<S>`, 1 for `</S>`, else 2 + the distinct word's number, shape
                `(window, batch)`.
            backward_inputs: The same of the backward stream.
            forward_targets: Target ids, shape `(window, batch)`.
            backward_targets: The same of the backward stream.

        Returns:
            Losses in nats of both directions, shape `(window, batch)` each; the backward ones are
            None if the model has no backward direction.
        """
        bilm = self.model.elmo
        table = torch.cat([bilm.encode_boundaries(), self._encode(input_ids, word_input_ids)])
        window, batch = forward_inputs.shape
        inputs = [table[forward_inputs.flatten()]]
        stacks = [bilm.forward_lstm]
        state = self.state or self._zero_state(batch)
        states = [state.forward]
        targets = [forward_targets]
        if state.backward is not None:
            inputs.append(table[backward_inputs.flatten()])
            stacks.append(bilm.backward_lstm)
            states.append(state.backward)
            targets.append(backward_targets)
        outputs = run_stacks(stacks, inputs, [batch] * window, states, [False] * len(stacks))
        new_states = [tuple(part.detach() for part in new) for _, new in outputs]
        self.state = ElmoState(new_states[0], new_states[1] if len(new_states) > 1 else None)
        losses = [
            self._losses(layers[-1], target.flatten(), direction).view(window, batch)
            for direction, ((layers, _), target) in enumerate(zip(outputs, targets, strict=True))
        ]
        self.num_windows += self.training
        return losses[0], losses[1] if len(losses) > 1 else None

    def _encode(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode distinct words in chunks; those of like lengths stand together."""
        encoder = self.model.elmo.token_encoder
        kinds = [ids.split(WORDS_PER_CHUNK) for ids in (input_ids, word_input_ids) if ids is not None]
        return torch.cat([
            encoder(
                None if input_ids is None else chunk[0],
                None if word_input_ids is None else chunk[-1],
            )
            for chunk in zip(*kinds, strict=True)
        ])

    def _zero_state(self, batch: int) -> ElmoState:
        config, device = self.model.config, self.model.device
        h = torch.zeros(config.num_hidden_layers, batch, config.projection_size, device=device)
        c = torch.zeros(config.num_hidden_layers, batch, config.cell_size, device=device)
        return ElmoState((h, c), (h, c) if config.bidirectional else None)

    def _losses(self, hidden: Tensor, targets: Tensor, direction: int) -> Tensor:
        softmax = self.model.softmax
        hidden = F.dropout(hidden, self.model.config.dropout, self.training)
        if self.num_negatives is None or not self.training:
            return full_softmax_losses(hidden, targets, softmax)
        generator = torch.Generator()
        generator.manual_seed((self.seed << 40) + 2 * self.num_windows + direction)
        return sampled_softmax_losses(hidden, targets, softmax, self.num_negatives, generator)
