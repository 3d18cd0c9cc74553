"""Scores, each with its signature."""
