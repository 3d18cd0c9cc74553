"""From a model and text to text: search and translation."""
