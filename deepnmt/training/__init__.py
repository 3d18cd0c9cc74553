"""A run: loss, schedule, trainer, checkpoints."""
