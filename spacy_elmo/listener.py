"""`spacy_elmo.ElmoListener.v1`: a component's own, learned mix of the pipeline's ELMo layers.

A listener holds no biLM. It asks the `elmo` component before it for the layers of the docs at hand,
whatever batch they are in and whether or not that component has seen them.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast
from weakref import ref

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Model

from .architecture import Array, DocLayers, ThincModel, get_shim
from .segments import Segment

if TYPE_CHECKING:
    from .component import Elmo

LISTENER_NAME = "elmo-listener"
MIX_NAME = "elmo-mix"
ANY_UPSTREAM = "*"
# Adam moves a number by about its learning rate in each step, however steep its gradient is. At
# spaCy's 0.001 a mix would stay where it began, so it learns this many times faster.
LEARN_RATE_SCALE = 10.0

LayerNorm: TypeAlias = Literal["none", "sentence"]


class LearnedMix(NamedTuple):
    """What a component has learned of the layers (Peters et al. 2018, eq. 1).

    Attributes:
        shares: Of each layer in the sum, the word vectors first: `softmax(w)`.
        gamma: Factor of the sum.
    """

    shares: Array
    gamma: float


class ElmoLink:
    """Where a listener finds its `elmo` component, which it does not own."""

    def __init__(self) -> None:
        self._elmo: ref[Elmo] | None = None

    def connect(self, elmo: "Elmo | None") -> None:
        """Point to a component, or to none."""
        self._elmo = None if elmo is None else ref(elmo)

    def find(self) -> "Elmo | None":
        """Give the component if there is one."""
        return None if self._elmo is None else self._elmo()

    def get(self) -> "Elmo":
        """Give the component.

        Raises:
            ValueError: If there is none.
        """
        elmo = self.find()
        if elmo is None:
            raise ValueError(
                "This component mixes the layers of an 'elmo' component, and none stands before it "
                "in its pipeline. Add one there (nlp.add_pipe('elmo', first=True)), load the "
                "pipeline without excluding it, or, to move the component to another pipeline, "
                "give it a biLM of its own first with nlp.replace_listeners."
            )
        return elmo

    def __deepcopy__(self, memo: dict[int, Any]) -> "ElmoLink":
        return self  # copies of a model, as nlp.rehearse makes them, ask the same component

    def __reduce__(self) -> tuple[Any, ...]:
        return ElmoLink, (), self.find()

    def __setstate__(self, elmo: "Elmo | None") -> None:
        self.connect(elmo)


@registry.architectures("spacy_elmo.ElmoListener.v1")
def make_elmo_listener(
    upstream: str = ANY_UPSTREAM,
    width: int | None = None,
    layer_norm: LayerNorm = "none",
    dropout: float = 0.0,
    l2: float = 0.0,
    train_gamma: bool = True,
    learn_rate_scale: float = LEARN_RATE_SCALE,
) -> ThincModel:
    """Mix the layers of the pipeline's `elmo` component with weights that are learned.

    Computes `gamma * sum_j softmax(w)_j * layer_j` (Peters et al. 2018, eq. 1), then dropout. It
    begins with the mean of the layers, and an optimiser's weight decay draws it back there.

    Args:
        upstream: Name of the `elmo` component; `"*"` = the last one before.
        width: Of the output; None = found out when the pipeline is initialised.
        layer_norm: Whether each layer is normalised over each sentence before it is mixed.
        dropout: Probability for the output, in training only.
        l2: The paper's lambda: `l2 * ||w||^2` is added to the loss.
        train_gamma: Whether gamma is learned; otherwise it is 1.
        learn_rate_scale: How many times faster than other parameters the mix learns.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.
    """
    attrs = {"upstream": upstream, "link": ElmoLink()}
    model = _make_mix(LISTENER_NAME, layer_norm, dropout, l2, train_gamma, learn_rate_scale)
    model.attrs.update(attrs)
    if width is not None:
        model.set_dim("nO", width)
    return model


@registry.architectures("spacy_elmo.ElmoMix.v1")
def make_elmo_mix(
    model: ThincModel,
    layer_norm: LayerNorm = "none",
    dropout: float = 0.0,
    l2: float = 0.0,
    train_gamma: bool = True,
    learn_rate_scale: float = LEARN_RATE_SCALE,
) -> ThincModel:
    """Mix the layers of a biLM that belongs to this component alone, and is frozen.

    It is what `nlp.replace_listeners` puts in a listener's place.

    Args:
        model: What `spacy_elmo.ElmoModel.v1` makes.
        layer_norm: As for the listener.
        dropout: As for the listener.
        l2: As for the listener.
        train_gamma: As for the listener.
        learn_rate_scale: As for the listener.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.
    """
    mix = _make_mix(MIX_NAME, layer_norm, dropout, l2, train_gamma, learn_rate_scale)
    mix.layers.append(model)
    return mix


def _make_mix(
    name: str,
    layer_norm: LayerNorm,
    dropout: float,
    l2: float,
    train_gamma: bool,
    learn_rate_scale: float,
) -> ThincModel:
    if not 0 <= dropout < 1:
        raise ValueError(f"Expected dropout from 0 to below 1, got {dropout}.")
    return Model(
        name,
        forward,
        init=init,
        dims={"nO": None},
        params={"mix": None, "gamma": None},
        attrs={
            "position": "input",
            "layer_norm": layer_norm,
            "mix_dropout": dropout,  # spaCy sets whatever is called dropout_rate
            "l2": l2,
            "train_gamma": train_gamma,
            "learn_rate_scale": learn_rate_scale,
        },
    )


def init(model: ThincModel, X: Any = None, Y: Any = None) -> None:  # noqa: N803 (thinc's names)
    """Begin with the mean of the layers.

    Raises:
        ValueError: If there is no `elmo` component, or it has another width.
    """
    if model.layers:
        model.layers[0].initialize()
    bilm = model.layers[0] if model.layers else model.attrs["link"].get().model
    config = get_shim(bilm).load().model.config
    if model.has_dim("nO") and model.get_dim("nO") != config.hidden_size:
        raise ValueError(
            f"Expected width {config.hidden_size} of the ElmoListener, the width of its 'elmo' "
            f"component, got {model.get_dim('nO')}. Set it to null to have it found."
        )
    model.set_dim("nO", cast(int, config.hidden_size))
    model.set_param("mix", model.ops.alloc1f(config.num_mixed_layers))
    model.set_param("gamma", model.ops.alloc1f(1))


def get_mix(model: ThincModel) -> LearnedMix:
    """Give what a listener has learned so far.

    The parameters are distances from the mean of the layers and from a gamma of 1, so that they
    begin at zero and decay towards it; divided by `learn_rate_scale`, so that they learn faster.
    """
    scale = model.attrs["learn_rate_scale"]
    shares = model.ops.softmax(scale * model.get_param("mix"))
    return LearnedMix(shares, 1.0 + scale * float(model.get_param("gamma")[0]))


def forward(
    model: ThincModel, docs: Sequence[Doc], is_train: bool
) -> tuple[list[Array], Callable[[list[Array]], list[Doc]]]:
    """Mix the layers of docs.

    Args:
        model: What `make_elmo_listener` or `make_elmo_mix` makes.
        docs: Docs, empty ones included.
        is_train: Whether the mix drops out, and a biLM that is not frozen learns.

    Returns:
        Vectors of each doc, `(tokens, width)`, and a function that takes their gradients.

    Raises:
        ValueError: If there is no `elmo` component.
    """
    send: Callable[[list[Array]], None] | None = None
    if model.layers:
        read = model.layers[0].predict(docs)
    else:
        read, send = model.attrs["link"].get().read_layers(docs, is_train=is_train)
    if not docs:
        return [], lambda gradients: []
    xp, attrs = model.ops.xp, model.attrs
    edges = list(accumulate(len(doc) for doc in docs))[:-1]
    layers = xp.concatenate([doc.layers for doc in read], axis=1)  # (layers, tokens, width)
    backprop_norm: Callable[[Array], Array] = _pass
    if attrs["layer_norm"] == "sentence":
        layers, backprop_norm = normalize_layers(xp, layers, _find_rows(read))
    mix = get_mix(model)
    total = xp.tensordot(mix.shares, layers, 1)  # (tokens, width)
    rate = attrs["mix_dropout"] if is_train else 0.0
    mask = model.ops.get_dropout_mask(total.shape, rate) if rate else 1.0

    def backprop(gradients: list[Array]) -> list[Doc]:
        gradient = xp.concatenate(gradients) * mask
        _learn_mix(model, mix, layers, total, gradient)
        if send is not None:
            d_layers = backprop_norm(mix.gamma * mix.shares[:, None, None] * gradient)
            send(xp.split(d_layers, edges, axis=1))
        return []

    return xp.split(mix.gamma * total * mask, edges), backprop


def _learn_mix(
    model: ThincModel, mix: LearnedMix, layers: Array, total: Array, gradient: Array
) -> None:
    """Add to the gradients of the mix.

    Args:
        model: The listener.
        mix: Its mix.
        layers: What was mixed, shape `(layers, tokens, width)`.
        total: Their weighted sum, shape `(tokens, width)`.
        gradient: Of `gamma * total`, shape `(tokens, width)`.
    """
    xp, attrs = model.ops.xp, model.attrs
    scale = attrs["learn_rate_scale"]
    d_shares = mix.gamma * xp.tensordot(layers, gradient, 2)  # (layers,)
    d_weights = mix.shares * (d_shares - xp.dot(mix.shares, d_shares))
    d_weights += 2 * attrs["l2"] * scale * model.get_param("mix")
    model.inc_grad("mix", scale * d_weights)
    if attrs["train_gamma"]:
        model.inc_grad("gamma", scale * xp.vdot(total, gradient).reshape(1))


def _pass(gradient: Array) -> Array:
    return gradient


def _find_rows(docs: Sequence[DocLayers]) -> list[Segment]:
    """Find the rows of each sentence where the tokens of docs stand one after the other."""
    starts = accumulate((doc.layers.shape[1] for doc in docs), initial=0)
    return [
        [start + row for row in rows]
        for doc, start in zip(docs, starts, strict=False)
        for rows in doc.segments
    ]


def normalize_layers(
    xp: Any, layers: Array, sentences: Sequence[Segment]
) -> tuple[Array, Callable[[Array], Array]]:
    """Give each layer mean 0 and variance 1 over all numbers of each sentence.

    `elmo`'s original takes mean and variance over the batch (bilm/elmo.py, `weight_layers`), which
    lets a sentence depend on its neighbours.

    Args:
        xp: numpy or cupy.
        layers: Shape `(layers, tokens, width)`.
        sentences: Rows of the words of each sentence; other rows become zeros.

    Returns:
        The same shape, and a function from its gradient to that of `layers`.
    """
    from hf_elmo.modeling_elmo import LAYER_NORM_EPSILON

    result = xp.zeros_like(layers)
    factors = []
    for rows in sentences:
        x = layers[:, rows]
        centred = x - x.mean(axis=(1, 2), keepdims=True)
        variance = xp.square(centred).mean(axis=(1, 2), keepdims=True)
        factors.append(1 / xp.sqrt(variance + LAYER_NORM_EPSILON))
        result[:, rows] = centred * factors[-1]

    def backprop(gradient: Array) -> Array:
        d_layers = xp.zeros_like(gradient)
        for rows, factor in zip(sentences, factors, strict=True):
            y, d_y = result[:, rows], gradient[:, rows]
            slope = (d_y * y).mean(axis=(1, 2), keepdims=True)
            d_layers[:, rows] = factor * (d_y - d_y.mean(axis=(1, 2), keepdims=True) - y * slope)
        return d_layers

    return result, backprop


def replace_listener(bilm: ThincModel, listener: ThincModel, elmo: "Elmo") -> ThincModel:
    """Turn a listener into a mix with a biLM of its own; `nlp.replace_listeners` calls this.

    Args:
        bilm: A copy of the biLM.
        listener: The listener.
        elmo: The component that it listens to.
    """
    mix: ThincModel = listener.copy()
    mix.name = MIX_NAME
    mix.layers.append(bilm)
    for name in ("link", "upstream"):
        mix.attrs.pop(name)
    return mix


def replace_listener_config(
    bilm_config: dict[str, Any], tok2vec_config: dict[str, Any]
) -> dict[str, Any]:
    """Describe what `replace_listener` makes; `nlp.replace_listeners` calls this for each path.

    Args:
        bilm_config: Section of the biLM.
        tok2vec_config: Section `model.tok2vec` of the component: a listener, or an `ElmoTok2Vec`
            with listeners inside, of which the first that is not yet replaced is meant.
    """
    listener = tok2vec_config
    for key in ("elmo", "elmo_output"):
        section = tok2vec_config.get(key)
        if section and section["@architectures"] == "spacy_elmo.ElmoListener.v1":
            listener = section
            break
    settings = {
        key: value
        for key, value in listener.items()
        if key not in ("@architectures", "upstream", "width")
    }
    return {"@architectures": "spacy_elmo.ElmoMix.v1", **settings, "model": dict(bilm_config)}
