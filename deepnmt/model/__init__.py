"""The Transformer family of the paper: ids to logits. Knows integers, never a vocabulary."""
