"""A large job against the peers: lines as long as those of a news test, batched as each engine does it best.

    python benchmarks/translate_file.py --device cpu --lines 400 --peer-python peers/bin/python --json results/file.json
    python benchmarks/translate_file.py --device cuda --lines 10000 --peer-lines 2000

Random weights do not know when to stop, so every translation is forced to the length of its source. Ours is the whole
of `Translator.translate`, from text to text, with a tokeniser that only reads and writes numbers. CTranslate2 gets the
lines of one length as one request, all requests at once, in batches of `--tokens`; its workers share them. Marian gets
the lines sorted by length in batches of `--tokens`, each forced to the longest of its batch. Both generate one
token more than the length, because ours also computes the probability of the end.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from generate import SHAPE, _save_random_model

EOS, FIRST_WORD = 2, 4
TYPICAL = {"mean": 3.15, "deviation": 0.55, "longest": 150}  # of the logarithm of English subwords in newstest 2013/14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--peer-lines", type=int, help="fewer for the peers, where they take too long")
    parser.add_argument("--lengths", type=Path, help="an .npz with `source`, lengths to draw from (else log-normal)")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--presets", nargs="*", default=["en-de-pre-base", "en-de-pre-dlcl-30l"])
    parser.add_argument("--precisions", nargs="+", help="of ours (CPU: fp32 int8; GPU: bf16)")
    parser.add_argument("--ways", nargs="+", default=["default"], choices=list(WAYS), help="GPU: how ours searches")
    parser.add_argument("--slots", type=int, nargs="+", default=[0], help="GPU: sentences at once (0: as it is)")
    parser.add_argument("--tokens", type=int, nargs="+", help="tokens per batch of the peers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="all of it so often; the best of each counts")
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer", choices=list(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--overrides", nargs="*", default=[], help="section.field=value, for a try")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.peer:
        for row in PEERS[arguments.peer](arguments):
            print(json.dumps(row), flush=True)
        return
    report = {"machine": platform.processor() or platform.machine(), "command": " ".join(sys.argv), "jobs": []}
    jobs: dict[str, dict[str, Any]] = {}
    for number in range(arguments.rounds):
        # Ours and theirs in turn, so that a change in the machine's mood meets both.
        for row in _everyone(arguments):
            before = jobs.get(row["name"])
            if before is None:
                jobs[row["name"]] = row
            elif row["lines_per_second"] > before["lines_per_second"]:
                before["lines_per_second"], before["tokens_per_second"] = (
                    row["lines_per_second"],
                    row["tokens_per_second"],
                )
            print(f"{number + 1}: {row['name']:<64}{row['lines_per_second']:>9,.1f} lines/s", flush=True)
            report["jobs"] = list(jobs.values())
            if arguments.json:
                arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _everyone(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield from ours(arguments)
    for peer in arguments.peers:
        yield from run_peer(peer, arguments)


def line_lengths(arguments: argparse.Namespace, count: int) -> Any:
    """Of the sources, their end not counted; the same for everyone, and of fewer lines the first ones."""
    random = np.random.default_rng(1)
    if arguments.lengths:
        known = np.load(arguments.lengths)["source"]
        lengths = random.choice(known[known > 0], arguments.lines)
    else:
        drawn = np.exp(random.normal(TYPICAL["mean"], TYPICAL["deviation"], arguments.lines))
        lengths = drawn.astype(int).clip(1, TYPICAL["longest"])
    return lengths[:count].astype(int)


def _row(name: str, lengths: Any, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "lines": len(lengths),
        "lines_per_second": len(lengths) / seconds,
        "tokens_per_second": float(lengths.sum()) / seconds,
        **more,
    }


class NumberTokenizer:
    """Text such as `w12 w7` and its ids."""

    vocab_size = SHAPE["vocab_size"]
    language = None
    begin: tuple[int, ...] = ()
    ending = (EOS,)

    def opening(self) -> list[int]:
        return []

    def encode(self, text: str) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(self.piece, ids))

    def piece(self, number: int) -> str:
        return f"w{number}"


class NumberTokenizers:
    source = target = NumberTokenizer()


def ours(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from deepnmt.devices import tune_for_translation

    tune_for_translation()  # as the commands do
    import torch

    from deepnmt.config import load_recipe
    from deepnmt.decoding.translator import Translator, in_processes
    from deepnmt.model.transformer import Transformer

    torch.set_num_threads(arguments.threads)
    on_cpu = arguments.device == "cpu"
    lengths = line_lengths(arguments, arguments.lines)
    random = np.random.default_rng(2)
    sizes = [f"model.{side}_vocab_size={SHAPE['vocab_size']}" for side in ("source", "target")]
    for preset in arguments.presets:
        # Not tied: a random tied model says again what it was given, and it is given the end first.
        settings = [*sizes, "model.tie_output=false", *arguments.overrides]
        config = load_recipe(preset, settings).model
        size = config.source_vocab_size
        texts = [" ".join(f"w{word}" for word in random.integers(FIRST_WORD, size, n)) for n in lengths]
        for precision in arguments.precisions or (("fp32", "int8") if on_cpu else ("bf16",)):
            torch.manual_seed(1)
            model = Transformer(config).to(arguments.device).eval()
            with torch.no_grad():
                model.output_weight[EOS] = 0  # never among the best
            for way in arguments.ways:
                for slots in arguments.slots if way == "default" and not on_cpu else [0]:
                    translator = Translator.of(model, NumberTokenizers(), precision)  # type: ignore[arg-type]
                    WAYS[way](translator, slots)
                    name = f"deepnmt {preset} {precision}, beam {arguments.beam}"
                    name += "" if way == "default" else f", {way}"
                    name += f", {slots} slots" if slots else ""
                    with in_processes(translator):  # as the commands do
                        row = _timed(name, translator, texts, lengths, arguments)
                    yield row
                    del translator
            del model


def _timed(name: str, translator: Any, texts: list[str], lengths: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    def run(some: list[str]) -> tuple[list[str], float]:
        started = time.perf_counter()
        found = translator.translate(some, beam=arguments.beam, max_length_ratio=1.0, max_length_extra=0)
        return found, time.perf_counter() - started

    on_cpu = arguments.device == "cpu"
    # On a GPU the first time also compiles and records; on a CPU a few lines warm it up.
    _, first = run(texts[::20] if on_cpu else texts)
    found, seconds = run(texts)
    wrong = sum(len(text.split()) != int(length) for text, length in zip(found, lengths, strict=True))
    more = {} if on_cpu else {"first_seconds": first, "memory_gib": _memory()}
    return _row(name, lengths, seconds, of_another_length=wrong, **more)


def _memory() -> float:
    import torch

    used = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return used


def _slots(translator: Any, slots: int) -> None:
    if slots and translator.continuous is not None:
        translator.continuous.most = slots


def _plain(translator: Any, slots: int) -> None:
    translator.continuous = None


WAYS: dict[str, Callable[[Any, int], None]] = {"default": _slots, "plain": _plain}


def run_peer(peer: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A peer in a process of its own, so that no two libraries share threads or memory."""
    command = [arguments.peer_python, __file__, "--peer", peer, "--device", arguments.device]
    for name in ("lines", "peer_lines", "lengths", "beam", "threads"):
        if getattr(arguments, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    if arguments.tokens:
        command += ["--tokens", *map(str, arguments.tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"notice: {peer} is left out{' in part' if rows else ''}: {reason}", file=sys.stderr)
    yield from rows


def ctranslate2(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    import ctranslate2 as engine

    if arguments.device != "cpu":
        sys.exit("measured on the CPU only")
    lengths = line_lengths(arguments, arguments.peer_lines or arguments.lines)
    random = np.random.default_rng(2)
    by_length: dict[int, list[list[str]]] = {}
    for length in sorted(lengths, reverse=True):
        words = random.integers(0, SHAPE["vocab_size"] - FIRST_WORD, length)
        by_length.setdefault(int(length), []).append([f"w{word}" for word in words])
    with tempfile.TemporaryDirectory() as folder:
        _save_random_model(folder)
        for kind in ("float32", "int8"):
            translator = engine.Translator(folder, compute_type=kind, inter_threads=arguments.threads, intra_threads=1)
            for tokens in arguments.tokens or [1024]:

                def run(
                    groups: dict[int, list[list[str]]], translator: Any = translator, tokens: int = tokens
                ) -> float:
                    started = time.perf_counter()
                    asked = [
                        answer
                        for length, lines in groups.items()
                        for answer in translator.translate_batch(
                            lines, beam_size=arguments.beam, max_batch_size=tokens, batch_type="tokens",
                            min_decoding_length=length + 1, max_decoding_length=length + 1, asynchronous=True,
                        )
                    ]  # fmt: skip
                    for answer in asked:
                        answer.result()
                    return time.perf_counter() - started

                run(dict(list(by_length.items())[-4:]))
                way = f"{arguments.threads} x 1 threads, batches of {tokens} tokens"
                yield _row(f"CTranslate2 6L {kind}, {way}, beam {arguments.beam}", lengths, run(by_length))


def marian(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    on_cpu = arguments.device == "cpu"
    lengths = line_lengths(arguments, arguments.peer_lines or arguments.lines)
    dtype = torch.float32 if on_cpu else torch.bfloat16
    for layers in (6,) if on_cpu else (6, 30):
        config = MarianConfig(
            vocab_size=SHAPE["vocab_size"], decoder_vocab_size=SHAPE["vocab_size"], d_model=SHAPE["dim"],
            encoder_layers=layers, decoder_layers=6, encoder_ffn_dim=SHAPE["ffn_dim"], decoder_ffn_dim=SHAPE["ffn_dim"],
            encoder_attention_heads=SHAPE["num_heads"], decoder_attention_heads=SHAPE["num_heads"],
            activation_function="relu", pad_token_id=1, eos_token_id=2, forced_eos_token_id=2, decoder_start_token_id=2,
            max_position_embeddings=1024,
        )  # fmt: skip
        model = MarianMTModel(config).to(arguments.device, dtype).eval()
        for tokens in arguments.tokens or ([1024] if on_cpu else [8192, 16384]):
            batches = list(_batches(sorted(map(int, lengths), reverse=True), tokens))

            def run(some: list[list[int]], model: Any = model) -> float:
                started = time.perf_counter()
                for batch in some:
                    width = batch[0] + 1
                    source = torch.full((len(batch), width), 1)
                    for row, length in enumerate(batch):
                        source[row, :length] = FIRST_WORD + row
                        source[row, length] = EOS
                    source = source.to(arguments.device)
                    with torch.inference_mode():
                        model.generate(
                            source, attention_mask=source != 1, num_beams=arguments.beam,
                            min_new_tokens=batch[0] + 1, max_new_tokens=batch[0] + 1,
                        )  # fmt: skip
                if not on_cpu:
                    torch.cuda.synchronize()
                return time.perf_counter() - started

            run(batches[-1:])
            name = f"transformers Marian {layers}L {str(dtype).removeprefix('torch.')}, batches of {tokens} tokens"
            yield _row(f"{name}, beam {arguments.beam}", lengths, run(batches))


def _batches(lengths: list[int], tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for length in lengths:
        if batch and (len(batch) + 1) * (batch[0] + 1) > tokens:
            yield batch
            batch = []
        batch.append(length)
    yield batch


PEERS: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "ctranslate2": ctranslate2,
    "marian": marian,
}

if __name__ == "__main__":
    main()
