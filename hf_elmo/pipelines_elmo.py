"""Token-classification pipeline for a tokenizer whose words are rows of ids."""

from typing import Any

from transformers import TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy


class ElmoTokenClassificationPipeline(TokenClassificationPipeline):
    """Tag the words of texts, or of lists of words.

    The stock pipeline reads one id per token. Here, a token is a word with a row of character ids.
    Entities, their spans, batches and `aggregation_strategy` work as in the stock pipeline
    ("simple" is enough, since no word is split).

        pipe = pipeline("token-classification", model="my-tagger", trust_remote_code=True)
        pipe = pipeline("token-classification", model=model, tokenizer=tokenizer,
                        pipeline_class=ElmoTokenClassificationPipeline)  # already loaded
        pipe("The bank raised its rates.")
        pipe(["The", "bank", "raised", "its", "rates", "."], is_split_into_words=True)

    The pipeline needs a model that reads characters.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.model.config.char_embedding_size == 0:
            raise ValueError(
                "Expected a model that reads characters, got one with a vector for each word of "
                "its vocabulary. Call the model itself to tag words."
            )

    def gather_pre_entities(
        self,
        sentence: str,
        input_ids: Any,
        scores: Any,
        offset_mapping: Any,
        special_tokens_mask: Any,
        aggregation_strategy: AggregationStrategy,
        word_ids: list[int | None] | None = None,
        word_to_chars_map: list[tuple[int, int]] | None = None,
    ) -> list[dict[str, Any]]:
        """Return each word with its position and the probabilities of its labels.

        Unlike in the base class, a row of `input_ids` is a word, no word is split, and padding may
        be on the left, or missing in `word_ids`.
        """
        entities = []
        given = None if word_ids is None else [word for word in word_ids if word is not None]
        rows = [row for row in range(len(scores)) if not special_tokens_mask[row]]
        for index, row in enumerate(rows):  # padding can be on the left
            start, end = (int(place) for place in offset_mapping[row])
            if given is not None and word_to_chars_map is not None:
                shift = word_to_chars_map[given[index]][0]
                start, end = start + shift, end + shift
            entities.append(
                {
                    "word": sentence[start:end],
                    "scores": scores[row],
                    "start": start,
                    "end": end,
                    "index": index,
                    "is_subword": False,
                }
            )
        return entities
