"""Documents: sentences to translate, and everything around them, which is kept. One format, one file."""
