"""Parts that both trainers share: checkpoints, resume checks, time limit."""
