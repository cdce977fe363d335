"""Settings of checkpoints."""

from hf_elmo.pretraining.training_arguments import describe_checkpoints


def test_with_held_out_text_each_checkpoint_is_evaluated_and_the_best_is_kept() -> None:
    arguments = describe_checkpoints(True, 20, 30, 2)
    assert arguments["eval_steps"] == arguments["save_steps"] == 20
    assert arguments["load_best_model_at_end"]
    assert not arguments["greater_is_better"]  # a perplexity


def test_without_held_out_text_checkpoints_are_only_saved() -> None:
    assert describe_checkpoints(False, 20, 30, 2) == {"save_steps": 30, "save_total_limit": 2}
