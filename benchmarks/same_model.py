"""One trained MODEL in two engines, deepnmt and CTranslate2: the same translations, the same BLEU, and how fast?

    python benchmarks/same_model.py MODEL --source test.de --reference test.en --json results/same-model.json

The model is exported to CTranslate2 (docs/export.md), so it must be one that CTranslate2 expresses. Both translate the
file from text to text on `--threads` cores, one batch on each core, with one beam and one length penalty. CTranslate2
runs in a process of its own; `--peer-python` names an interpreter that has ctranslate2 and sentencepiece. The best of
`--rounds` counts, and a round has both engines in turn.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PRECISIONS = {"fp32": "float32", "int8": "int8"}  # ours and theirs
BATCH_TOKENS = 1024  # of CTranslate2, as in translate_file.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--length-penalty", type=float, default=0.6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(ctranslate2(arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        report = compare(arguments, Path(folder) / "exported")
    for name, row in report["engines"].items():
        bleu = "" if row["bleu"] is None else f"  BLEU {row['bleu']:.2f}"
        same = f"{row['same_as_fp32']:.1%} as deepnmt fp32"
        print(f"{name:<20}{row['lines_per_second']:>8,.1f} lines/s{bleu}  {same}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def compare(arguments: argparse.Namespace, exported: Path) -> dict[str, Any]:
    import deepnmt

    deepnmt.export(arguments.model, exported, to="ctranslate2")
    runs: dict[str, dict[str, Any]] = {}
    for _ in range(arguments.rounds):
        for run in (*ours(arguments), *theirs(arguments, exported)):
            before = runs.setdefault(run["name"], run)
            before["seconds"] = min(before["seconds"], run["seconds"])
    references = [_lines(arguments.reference)] if arguments.reference else None
    plain = runs["deepnmt fp32"]["translations"]
    engines = {
        name: {
            "lines_per_second": len(plain) / run["seconds"],
            "bleu": deepnmt.score(run["translations"], references, metrics=["bleu"]).bleu.value if references else None,
            "same_as_fp32": sum(map(str.__eq__, run["translations"], plain)) / len(plain),
        }
        for name, run in runs.items()
    }
    return {
        "machine": platform.processor() or platform.machine(),
        "command": " ".join(sys.argv),
        "lines": len(plain),
        "engines": engines,
    }


def ours(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from deepnmt.devices import tune_for_translation

    tune_for_translation()  # as the commands do
    import torch

    from deepnmt.decoding.translator import Translator

    torch.set_num_threads(arguments.threads)
    texts, found = _lines(arguments.source), []
    for precision in arguments.precisions:
        translator = Translator(arguments.model, precision=precision)
        settings = {"beam": arguments.beam, "length_penalty": arguments.length_penalty, "keep_placeholders": False}
        translator.translate(texts[::20], **settings)
        started = time.perf_counter()
        translations = translator.translate(texts, **settings)
        seconds = time.perf_counter() - started
        found.append({"name": f"deepnmt {precision}", "seconds": seconds, "translations": translations})
    return found


def theirs(arguments: argparse.Namespace, exported: Path) -> list[dict[str, Any]]:
    command = [arguments.peer_python, __file__, str(exported), "--peer"]
    for name in ("source", "beam", "length_penalty", "threads"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    done = subprocess.run(
        [*command, "--precisions", *arguments.precisions], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"CTranslate2 failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    runs: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return runs


def ctranslate2(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import ctranslate2 as engine
    import sentencepiece

    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(arguments.model / f"{side}.spm"))
        for side in ("source", "target")
    )
    texts, found = _lines(arguments.source), []
    for precision in arguments.precisions:
        translator = engine.Translator(
            str(arguments.model),
            compute_type=PRECISIONS[precision],
            inter_threads=arguments.threads,
            intra_threads=1,
        )

        def translate(texts: list[str], translator: Any = translator) -> list[str]:
            results = translator.translate_batch(
                source.encode(texts, out_type=str),
                beam_size=arguments.beam,
                length_penalty=arguments.length_penalty,
                min_decoding_length=0,
                disable_unk=True,
                max_batch_size=BATCH_TOKENS,
                batch_type="tokens",
            )
            return [target.decode_pieces(result.hypotheses[0]) for result in results]

        translate(texts[::20])
        started = time.perf_counter()
        translations = translate(texts)
        seconds = time.perf_counter() - started
        found.append({"name": f"CTranslate2 {precision}", "seconds": seconds, "translations": translations})
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main()
