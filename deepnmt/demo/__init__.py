"""The demo: download a corpus and train a translation model within a time budget, with the public commands."""
