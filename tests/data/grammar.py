"""A tiny English-German grammar: sentences with their translations, as many as a test asks for."""

import random
from collections import Counter
from pathlib import Path

SUBJECTS = [
    ("the dog", "der Hund"),
    ("the cat", "die Katze"),
    ("my neighbour", "mein Nachbar"),
    ("a child", "ein Kind"),
]
VERBS = [("sees", "sieht"), ("finds", "findet"), ("likes", "mag"), ("buys", "kauft"), ("draws", "zeichnet")]
OBJECTS = [("the house", "das Haus"), ("a tree", "einen Baum"), ("the old key", "den alten Schlüssel"), ("it", "es")]
TIMES = [("today", "heute"), ("on Monday", "am Montag"), ("again", "wieder"), ("at night", "in der Nacht")]


def english_german(pairs: int, seed: int = 0) -> list[tuple[str, str]]:
    """Different sentences of a tiny grammar; a number makes each one unique."""
    choose = random.Random(seed)
    made = []
    for number in range(pairs):
        parts = [choose.choice(table) for table in (SUBJECTS, VERBS, OBJECTS, TIMES)]
        english, german = (" ".join(part[side] for part in parts) for side in (0, 1))
        made.append((f"{english.capitalize()}, {seed}-{number}.", f"{german.capitalize()}, {seed}-{number}."))
    return made


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> tuple[Path, Path]:
    paths = (folder / f"{name}.en", folder / f"{name}.de")
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return paths


def count_words(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())
