"""The demo: from nothing to a translation model of one's own, within a time budget, by the calls a user would make."""
