"""The text of docs/tutorial.md: made-up sentences of a household, English and German, written as six small files.

python docs/tutorial_corpus.py FOLDER
"""

import random
import sys
from pathlib import Path

# English with "the"; German nominative, accusative and gender.
PEOPLE = [
    ("the woman", "die Frau"),
    ("the man", "der Mann"),
    ("the child", "das Kind"),
    ("the teacher", "die Lehrerin"),
    ("the neighbour", "der Nachbar"),
    ("the girl", "das Mädchen"),
    ("the grandfather", "der Großvater"),
    ("the doctor", "die Ärztin"),
    ("my sister", "meine Schwester"),
    ("my brother", "mein Bruder"),
    ("our guest", "unser Gast"),
    ("Anna", "Anna"),
]
THINGS = [
    ("book", "Buch", "n"),
    ("letter", "Brief", "m"),
    ("lamp", "Lampe", "f"),
    ("bicycle", "Fahrrad", "n"),
    ("key", "Schlüssel", "m"),
    ("bag", "Tasche", "f"),
    ("newspaper", "Zeitung", "f"),
    ("table", "Tisch", "m"),
    ("picture", "Bild", "n"),
    ("chair", "Stuhl", "m"),
    ("clock", "Uhr", "f"),
    ("house", "Haus", "n"),
    ("garden", "Garten", "m"),
    ("window", "Fenster", "n"),
    ("kitchen", "Küche", "f"),
]
NOMINATIVE = {"m": "der", "f": "die", "n": "das"}
ACCUSATIVE = {"m": "den", "f": "die", "n": "das"}
# English third person and infinitive; German third person and infinitive.
VERBS = [
    ("sees", "see", "sieht", "sehen"),
    ("finds", "find", "findet", "finden"),
    ("buys", "buy", "kauft", "kaufen"),
    ("sells", "sell", "verkauft", "verkaufen"),
    ("needs", "need", "braucht", "brauchen"),
    ("looks for", "look for", "sucht", "suchen"),
    ("paints", "paint", "malt", "malen"),
    ("cleans", "clean", "putzt", "putzen"),
    ("shows", "show", "zeigt", "zeigen"),
]
ADJECTIVES = [
    ("old", "alt"),
    ("new", "neu"),
    ("small", "klein"),
    ("big", "groß"),
    ("beautiful", "schön"),
    ("expensive", "teuer"),
    ("clean", "sauber"),
    ("red", "rot"),
    ("green", "grün"),
    ("bright", "hell"),
]
TIMES = [
    ("today", "heute"),
    ("tomorrow", "morgen"),
    ("now", "jetzt"),
    ("in the evening", "am Abend"),
    ("on Sunday", "am Sonntag"),
    ("every day", "jeden Tag"),
]


def sentence(draw: random.Random) -> tuple[str, str]:
    """One pair by one of six patterns, among them the German verb at the end and the subject after the verb."""
    who, wer = draw.choice(PEOPLE)
    thing, ding, gender = draw.choice(THINGS)
    verb, verb_plain, verb_de, verb_de_plain = draw.choice(VERBS)
    adjective, adjective_de = draw.choice(ADJECTIVES)
    time, time_de = draw.choice(TIMES)
    accusative, nominative = f"{ACCUSATIVE[gender]} {ding}", f"{NOMINATIVE[gender]} {ding}"
    return draw.choice(
        [
            (f"{who} {verb} the {thing}.", f"{wer} {verb_de} {accusative}."),
            (f"{time} {who} {verb} the {thing}.", f"{time_de} {verb_de} {wer} {accusative}."),
            (f"{who} wants to {verb_plain} the {thing} {time}.", f"{wer} will {time_de} {accusative} {verb_de_plain}."),
            (f"the {thing} is {adjective}.", f"{nominative} ist {adjective_de}."),
            (f"is the {thing} very {adjective}?", f"ist {nominative} sehr {adjective_de}?"),
            (
                f"{who} {verb} the {thing} because it is {adjective}.",
                f"{wer} {verb_de} {accusative}, weil {PRONOUN[gender]} {adjective_de} ist.",
            ),
        ]
    )


PRONOUN = {"m": "er", "f": "sie", "n": "es"}


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def write(folder: Path, train: int = 2000, held_out: int = 100, mono: int = 1000) -> None:
    """train, valid and test share no pair; mono.de is German whose English is thrown away."""
    draw = random.Random(1)
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < train + 2 * held_out + mono:
        english, german = sentence(draw)
        pairs[capital(english), capital(german)] = None
    left = iter(pairs)
    for name, number in {"train": train, "valid": held_out, "test": held_out, "mono": mono}.items():
        taken = [next(left) for _ in range(number)]
        for side, language in enumerate(("en", "de")):
            if (name, language) != ("mono", "en"):
                text = "".join(f"{pair[side]}\n" for pair in taken)
                (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    # Real text has flaws, for `deepnmt prepare` to find.
    with (folder / "train.en").open("a", encoding="utf-8") as english, (folder / "train.de").open("a") as german:
        english.write("Copyright 2026\n\nThe table is old.\nThe table is old.\n")
        german.write("Copyright 2026\nDas Haus ist groß.\nDer Tisch ist alt.\nDer Tisch ist alt.\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/tutorial_corpus.py FOLDER")
    destination = Path(sys.argv[1])
    destination.mkdir(parents=True, exist_ok=True)
    write(destination)
