"""How well a biLM predicts held-out text, beside an earlier one on the words that both predict.

python benchmarks/perplexity.py DATA --model new --before elmo-mini-en

Perplexities over different target words cannot be compared. So both softmaxes are cut down to the
words that both models know, and all others count as `<UNK>`.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import torch
import typer
from torch import nn

from hf_elmo import ElmoForPreTraining, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.language_model.models import load_language_model
from hf_elmo.language_model.perplexity import Perplexity, evaluate_text
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.text.text_reader import SentenceReader, read_files

TEXTS = {
    "old books, valid": "gutenberg/valid.txt.gz",
    "old books, test": "gutenberg/test.txt.gz",
    "modern text, valid": "modern/valid.txt.xz",
    "modern text, test": "modern/test.txt.xz",
    "UD English EWT, dev": "ewt/en_ewt-ud-dev.conllu.gz",
    "WikiText-2, test": "wikitext2_valid_test_only/test.txt.gz",
}


class LanguageModel(NamedTuple):
    """A biLM with its softmax, and what it reads and predicts."""

    model: ElmoForPreTraining
    tokenizer: ElmoTokenizer
    vocabulary: TargetVocabulary


def restrict(language_model: LanguageModel, words: list[str]) -> LanguageModel:
    """Cut a softmax down to some of its words."""
    model, tokenizer, vocabulary = language_model
    rows = vocabulary.convert_words_to_ids(words)
    softmax = nn.Linear(model.config.projection_size, len(words))
    with torch.no_grad():
        softmax.weight.copy_(model.softmax.weight[rows])
        softmax.bias.copy_(model.softmax.bias[rows])
    model.softmax = softmax
    return LanguageModel(model, tokenizer, TargetVocabulary(words))


def take(text: SentenceReader, every: int) -> SentenceReader:
    """Read only the first of each so many sentences."""

    def read(order: Random | None) -> Iterator[list[str]]:
        return (words for number, words in enumerate(text(order)) if number % every == 0)

    return read


def main(
    data: Annotated[Path, typer.Argument(help="Folder with gutenberg, modern, ewt and so on.")],
    model: Annotated[str, typer.Option(help="Folder or name of a biLM.")] = BUNDLED_NAME,
    before: Annotated[str | None, typer.Option(help="An earlier one, to compare with.")] = None,
    every: Annotated[int, typer.Option(help="Take one of so many sentences.", min=1)] = 6,
) -> None:
    """Print a table in Markdown: perplexity by text, each sentence on its own."""
    new = LanguageModel(*load_language_model(resolve_name(model)))
    texts = {
        name: take(read_files([str(data / path)], "conllu" if "conllu" in path else "text"), every)
        for name, path in TEXTS.items()
    }
    results: dict[str, list[Perplexity]] = {
        name: [evaluate_text(*new, text)] for name, text in texts.items()
    }
    columns = [f"all {len(new.vocabulary):,} words", "forward", "backward"]
    if before is not None:
        old = LanguageModel(*load_language_model(resolve_name(before)))
        common = [word for word in new.vocabulary.words if word in old.vocabulary]
        columns += [f"{len(common):,} words, before", "now", "lower by"]
        for contender in (restrict(old, common), restrict(new, common)):
            for name, text in texts.items():
                results[name].append(evaluate_text(*contender, text))
    print(f"| text | words and ends | {' | '.join(columns)} |\n|---|---{'|---' * len(columns)}|")
    for name, (own, *both) in results.items():
        numbers = [own.average, own.forward, own.backward, *(x.average for x in both)]
        cells = [f"{number:.1f}" for number in numbers if number is not None]
        cells += [f"{1 - both[1].average / both[0].average:.1%}"] if both else []
        print(f"| {name} | {own.num_targets:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    typer.run(main)
