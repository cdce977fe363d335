"""The model card: what a model is, how to use it, where it comes from, what it may be used for."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from huggingface_hub import CommitInfo, HfApi, ModelCardData
from transformers import PreTrainedModel

from .configuration_elmo import ElmoConfig

CARD_FILE = "README.md"  # the Hub's name for a model card

# Head: its task on the Hub, the class that loads it, what comes out of the card's example.
HEADS = {
    "ElmoForTokenClassification": (
        "token-classification",
        "AutoModelForTokenClassification",
        "out.logits: (2, 5, {num_labels})",
    ),
    "ElmoForSequenceClassification": (
        "text-classification",
        "AutoModelForSequenceClassification",
        "out.logits: (2, {num_labels})",
    ),
}
BILM = ("feature-extraction", "AutoModel", "out.elmo: (2, 5, {hidden_size}), the mix of its layers")

CARD = """\
---
{metadata}
---

# {name}

A language model over whole words (ELMo, Peters et al. 2018): it reads each word by {reading},
then its sentence with {layers} layers of LSTM in {directions}. A word's vector is a mix of the
layers, so that it depends on the word and on the sentence.

## Use

With `pip install spacy-elmo`, in transformers:

```python
import hf_elmo  # tells transformers of ELMo
from transformers import {auto_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {auto_class}.from_pretrained("{name}")
sentences = [["The", "bank", "raised", "its", "rates"], ["A", "river", "bank"]]
batch = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
out = model(**batch)  # {output}
```

and in spaCy:

```python
import spacy

nlp = spacy.blank("{language}")
nlp.add_pipe("elmo", config={{"model": {{"name": "{name}"}}}})
doc = nlp("The bank raised its rates.")
doc.tensor  # a row for each token
```

Where `modeling_elmo.py` stands beside this card, `trust_remote_code=True` does without the package.

## Sizes

| | |
|---|---|
{sizes}

## Training

{training}

## Limits

Vectors reflect the text that the model was trained on, its errors and prejudices included. Each
sentence is read on its own. Later encoders are more accurate on most tasks.

## Licence

{licence}

## Citation

```bibtex
@inproceedings{{peters-etal-2018-deep,
  title = {{Deep Contextualized Word Representations}},
  author = {{Peters, Matthew E. and Neumann, Mark and Iyyer, Mohit and Gardner, Matt and
            Clark, Christopher and Lee, Kenton and Zettlemoyer, Luke}},
  booktitle = {{Proceedings of NAACL-HLT 2018}},
  pages = {{2227--2237}},
  doi = {{10.18653/v1/N18-1202}},
  year = {{2018}}
}}
```
"""


def make_model_card(
    config: ElmoConfig,
    *,
    name: str = "my-elmo",
    license: str | None = None,  # noqa: A002 (the metadata's own name)
    language: str | Sequence[str] | None = None,
    source: str | None = None,
    files: Iterable[tuple[str, str]] = (),
    tags: Iterable[str] = (),
) -> str:
    """Describe a model, for the `README.md` beside its weights.

    Args:
        config: The model's configuration; its `architectures` tell the task.
        name: What users pass to `from_pretrained`.
        license: Identifier of the weights' licence, as the Hub spells it; None = not stated. It is
            never guessed: converting or saving a model does not change whose it is.
        language: Code or codes of the language ("en"), None = not stated.
        source: One or more sentences (Markdown) on where the weights come from.
        files: Name and SHA-256 of each file that the weights come from.
        tags: Tags besides "elmo".

    Returns:
        Markdown, with metadata in front.
    """
    task, auto_class, output = HEADS.get((config.architectures or [""])[0], BILM)
    languages = [language] if isinstance(language, str) else list(language or [])
    metadata = ModelCardData(
        license=license,
        language=languages or None,
        library_name="transformers",
        pipeline_tag=task,
        tags=["elmo", "spacy", *tags],
    )
    readings = {"its characters": config.num_filters, "a lexicon": config.word_vocab_size}
    return CARD.format(
        metadata=metadata.to_yaml(),
        name=name,
        layers=config.num_hidden_layers,
        directions="both directions" if config.bidirectional else "one direction",
        reading=" and ".join(name for name, size in readings.items() if size),
        auto_class=auto_class,
        output=output.format(num_labels=config.num_labels, hidden_size=config.hidden_size),
        language=languages[0] if len(languages) == 1 else "xx",
        sizes="\n".join(f"| {what} | {size} |" for what, size in _list_sizes(config)),
        training="\n".join(
            [
                source or "Not recorded.",
                *(f"- `{file}`, SHA-256 `{hash_}`" for file, hash_ in files),
            ]
        ),
        licence=license or "Not stated: ask who trained the weights, and set `license` above.",
    )


def push_with_card(
    model: PreTrainedModel,
    repo_id: str,
    *,
    license: str | None = None,  # noqa: A002 (the metadata's own name)
    language: str | Sequence[str] | None = None,
    tags: Sequence[str] = (),
    commit_message: str = "Upload model",
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    max_shard_size: int | str = "50GB",
) -> CommitInfo:
    """Upload the model to the Hub, with a model card unless the repository has one.

    Args:
        model: The model, which has a `make_card`; as its `push_to_hub`, this is a method.
        repo_id: Name of the repository; it is made if need be.
        license: See `make_model_card`.
        language: See `make_model_card`.
        tags: See `make_model_card`.
        commit_message: First line of the commit's message.
        commit_description: The rest of it.
        private: Whether a new repository is private; None = as its owner has set.
        token: As for every call of the Hub; None = the stored one.
        revision: Branch to write to.
        create_pr: Whether to open a pull request instead.
        max_shard_size: Largest size of a file of weights.

    Returns:
        What the Hub says of the commit.
    """
    hub = HfApi(token=token)
    repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/"):
        hub.create_branch(repo_id, branch=revision, exist_ok=True)
    has_card = hub.file_exists(repo_id, CARD_FILE, revision=revision)
    with TemporaryDirectory() as folder:
        make_card = cast(Callable[..., str], model.make_card)
        card = make_card(name=repo_id, license=license, language=language, tags=tags)
        (Path(folder) / CARD_FILE).write_text(card, encoding="utf-8")
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        return hub.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            ignore_patterns=[CARD_FILE] if has_card else None,
            commit_message=commit_message,
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )


def _list_sizes(config: ElmoConfig) -> list[tuple[str, object]]:
    filters = ", ".join(f"{number} of width {width}" for width, number in config.char_filters or [])
    sizes: list[tuple[str, object]] = [
        ("Parameters of the biLM", f"{count_parameters(config):,}"),
        ("Width of a vector", config.hidden_size),
        ("LSTM", f"cell {config.cell_size}, projected to {config.projection_size}"),
    ]
    if config.num_filters:
        sizes += [
            ("Characters of a word", config.max_characters_per_token),
            ("Character filters", f"{filters}; {config.num_highway_layers} highway layers"),
        ]
    if config.word_vocab_size:
        sizes.append(("Words of the lexicon", f"{config.word_vocab_size - 1:,}"))
    if config.vocab_size:
        sizes.append(("Words that the language model predicts", f"{config.vocab_size:,}"))
    return sizes


def count_parameters(config: ElmoConfig) -> int:
    """Count the weights of a biLM without building it; those of heads are not counted."""
    characters, words = config.char_embedding_size, config.word_embedding_size
    filters, projection = config.num_filters, config.projection_size
    encoder = config.word_vocab_size * words
    if characters:
        encoder += config.char_vocab_size * characters
        encoder += sum(
            number * (width * characters + 1) for width, number in config.char_filters or []
        )
        encoder += config.num_highway_layers * 2 * filters * (filters + 1)
    if config.use_token_projection:
        encoder += projection * (words + filters + 1)
    layer = 4 * config.cell_size * (2 * projection + 1)
    if config.use_cell_projection:
        layer += projection * config.cell_size
    return encoder + layer * config.num_hidden_layers * (2 if config.bidirectional else 1)
