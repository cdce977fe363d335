"""`spacy_elmo.ElmoListener.v1`: a component's own, learned mix of the pipeline's ELMo layers.

A listener holds no biLM. It reads the layers of docs from the `elmo` component before it. The docs
can be in any batch, and the `elmo` component need not have processed them.
"""

from copy import deepcopy
from functools import partial
from typing import Any

from spacy.util import registry
from thinc.api import Model
from thinc.layers.residual import init as init_residual

from .architecture import ThincModel
from .layers_and_gradients import SourceLink
from .learned_mix import LEARN_RATE_SCALE, LayerNorm, forward, init

LISTENER, MIX = "spacy_elmo.ElmoListener.v1", "spacy_elmo.ElmoMix.v1"
LISTENER_NAME, MIX_NAME = "elmo-listener", "elmo-mix"
ANY_UPSTREAM = "*"


class Replacement:
    """Change of a configuration by `nlp.replace_listeners`.

    spaCy first asks for the new content of each path that its user names, without telling which
    listener is there, and then for the new model of each listener. So the content is written when
    the listeners are known.

    Args:
        bilm: Section of the biLM.
        section: Section `model.tok2vec` of a component.

    Attributes:
        new: What spaCy writes to each path, empty at first.
        is_written: Whether the content is written.
    """

    def __init__(self, bilm: dict[str, Any], section: dict[str, Any]) -> None:
        self._bilm, self._section, self._before = bilm, section, deepcopy(section)
        self.new: dict[str, Any] = {}
        self.is_written = False

    def includes(self, section: dict[str, Any]) -> bool:
        """Return whether a section is another path of this change."""
        return section is self._section or section is self.new

    def write(self, listener: ThincModel) -> None:
        """Replace the section of a listener.

        Raises:
            ValueError: If `model.tok2vec` has no section of a listener.
        """
        place = "elmo_output" if listener.attrs["position"] == "output" else "elmo"
        for section in (self._section, self.new):  # one of them is in the configuration
            if not self.is_written:
                section.clear()
                section.update(deepcopy(self._before))
            found = _list_listeners(section)
            if not found:
                raise ValueError(f"Expected a {LISTENER} in the section model.tok2vec, got none.")
            old = min(found, key=partial(_count_differences, listener, section.get(place)))
            width = listener.maybe_get_dim("nO")  # an entity linker needs it
            new_listener = {**old, "width": width}
            old.clear()
            old.update({"@architectures": MIX, "model": dict(self._bilm), "listener": new_listener})
        self.is_written = True


def _count_differences(listener: ThincModel, expected: object, section: dict[str, Any]) -> int:
    """Count the differences between a section and the expected one of a listener."""
    is_upstream = section.get("upstream", ANY_UPSTREAM) == listener.attrs["upstream"]
    return 2 * (not is_upstream) + (section is not expected)


def _list_listeners(section: dict[str, Any]) -> list[dict[str, Any]]:
    """List the sections of listeners that are not replaced."""
    if section.get("@architectures") in (LISTENER, MIX):
        return [section] if section["@architectures"] == LISTENER else []
    parts = (part for part in section.values() if isinstance(part, dict))
    return [found for part in parts for found in _list_listeners(part)]


_REPLACEMENTS: list[Replacement] = []  # the current one last, after failed ones


@registry.architectures(LISTENER)
def make_elmo_listener(
    upstream: str = ANY_UPSTREAM,
    width: int | None = None,
    layer_norm: LayerNorm = "none",
    dropout: float = 0.0,
    l2: float = 0.0,
    train_gamma: bool = True,
    learn_rate_scale: float = LEARN_RATE_SCALE,
) -> ThincModel:
    """Make a model that mixes the layers of the pipeline's `elmo` component with learned weights.

    Computes `gamma * sum_j softmax(w)_j * layer_j` (Peters et al. 2018, eq. 1) with learned `w` and
    `gamma`, then dropout. The initial mix is the mean of the layers; the optimizer's weight decay
    pulls the mix towards this mean.

    Args:
        upstream: Name of the `elmo` component; `"*"` = the last one before this component.
        width: Output width; None = set when the pipeline is initialized.
        layer_norm: `"sentence"` = normalize each layer over each sentence before mixing.
        dropout: Dropout probability of the output, in training only.
        l2: The paper's lambda: `l2 * ||w||^2` is added to the loss.
        train_gamma: Learn gamma; otherwise it is 1.
        learn_rate_scale: Learning rate of the mix as a multiple of the other parameters' rate.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.

    Raises:
        ValueError: If dropout is out of range.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"Expected dropout from 0 to below 1, got {dropout}.")
    attrs = {
        "upstream": upstream,
        "link": SourceLink(),
        "position": "input",
        "layer_norm": layer_norm,
        "mix_dropout": dropout,  # spaCy overwrites all attributes named dropout_rate
        "l2": l2,
        "train_gamma": train_gamma,
        "learn_rate_scale": learn_rate_scale,
    }
    params: dict[str, Any] = {"mix": None, "gamma": None}
    dims = {"nO": width}
    return Model(LISTENER_NAME, forward, init=init, dims=dims, params=params, attrs=attrs)


@registry.architectures(MIX)
def make_elmo_mix(model: ThincModel, listener: ThincModel) -> ThincModel:
    """Make a copy of a listener with its own, frozen biLM, for `nlp.replace_listeners`.

    Args:
        model: Model of `spacy_elmo.ElmoModel.v1`.
        listener: Model of `spacy_elmo.ElmoListener.v1`.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.
    """
    mix: ThincModel = listener.copy()
    mix.name = MIX_NAME
    mix.layers.append(model)
    for name in ("link", "upstream"):
        mix.attrs.pop(name)
    return mix


def replace_listener(bilm: ThincModel, listener: ThincModel, elmo: Any) -> ThincModel:
    """Make the mix, with its own biLM, that replaces a listener in `nlp.replace_listeners`.

    Args:
        bilm: Copy of the biLM.
        listener: Listener to replace.
        elmo: Component of the biLM.
    """
    _REPLACEMENTS[-1].write(listener)
    if elmo.is_trainable:  # the copy may lack the last step of training
        elmo.source.finish_batch()
        bilm = elmo.model.copy()
    return make_elmo_mix(bilm, listener)


def replace_listener_config(
    bilm_config: dict[str, Any], tok2vec_config: dict[str, Any]
) -> dict[str, Any]:
    """Make a section for `replace_listener`; `nlp.replace_listeners` calls this for each path.

    Args:
        bilm_config: Section of the biLM.
        tok2vec_config: Section `model.tok2vec` of the component: a listener, or an `ElmoTok2Vec`.
    """
    known = [x for x in _REPLACEMENTS if x.includes(tok2vec_config) and not x.is_written]
    current = known[0] if known else Replacement(bilm_config, tok2vec_config)
    others = [x for x in _REPLACEMENTS if x is not current and not x.is_written]
    _REPLACEMENTS[:] = [*others, current]
    return current.new


def let_residuals_find_width(model: ThincModel) -> None:
    """Let the residual layers of a model take an unknown width from their input."""
    for node in model.walk():
        if node.name.startswith("residual(") and node.has_dim("nO") is None:
            node.init = _init_residual_by_input


def _init_residual_by_input(model: ThincModel, X: Any = None, Y: Any = None) -> None:  # noqa: N803
    """Initialize a residual layer, whose output is as wide as its input.

    thinc takes the width from `Y`: in an entity linker, the width of the knowledge base's entities.
    """
    init_residual(model, X=X, Y=X)
