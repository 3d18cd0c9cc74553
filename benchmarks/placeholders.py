"""How many placeholders, URLs and e-mail addresses of a test set survive its translation, and what keeping them costs.

    python benchmarks/placeholders.py MODEL --source test.en --reference test.de

A line survives if its translation has exactly the placeholders of its source; "reference" is the human translation.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import deepnmt
from deepnmt.decoding.placeholders import lacks_placeholders, placeholders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--precision", default="fp32")
    arguments = parser.parse_args()
    sources, references = (path.read_text().split("\n")[:-1] for path in (arguments.source, arguments.reference))
    translator = deepnmt.Translator(arguments.model, precision=arguments.precision)
    result = {"reference": survival(sources, references)}
    for name, keep in (("without", False), ("with", True)):
        started = time.monotonic()
        translations = translator.translate(sources, keep_placeholders=keep)
        seconds = time.monotonic() - started
        bleu = deepnmt.score(translations, references, metrics=["bleu"]).bleu
        result[f"{name} --keep-placeholders"] = {
            **survival(sources, translations),
            "BLEU": round(bleu.value, 2),
            "seconds": round(seconds, 1),
        }
    print(json.dumps(result, indent=2))


def survival(sources: list[str], translations: list[str]) -> dict[str, str]:
    pairs = [(source, text) for source, text in zip(sources, translations, strict=True) if placeholders(source)]
    kept = [sum((Counter(placeholders(s)) & Counter(placeholders(t))).values()) for s, t in pairs]
    total = sum(len(placeholders(source)) for source, _ in pairs)
    whole = sum(not lacks_placeholders(source, text) for source, text in pairs)
    return {"placeholders": f"{sum(kept)} of {total}", "lines": f"{whole} of {len(pairs)}"}


if __name__ == "__main__":
    main()
