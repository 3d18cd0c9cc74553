"""Training speed on a GPU: our presets against Hugging Face Marian of the same size, in one run.

    python benchmarks/train.py --lengths lengths.npz --json out.json

`lengths.npz` holds the arrays `source` and `target`: sentence lengths in subwords of the corpus whose batches are to be
imitated (`deepnmt prepare` prints them to DATASET; without the file a log-normal stand-in is used). The peer gets
sentences of one length, which is the best case for it: no padding at all.

The file is written anew after every row, so that a run that is cut short keeps what it has. `--warm` beforehand
compiles all cases side by side, a process each, into the compiler's cache.
"""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from deepnmt.analysis.config import TrainingTrial
from deepnmt.analysis.training_speed import Lengths, measure_training, typical_lengths
from deepnmt.config import load_recipe
from deepnmt.training import loss
from deepnmt.training.memory import free_memory

VOCABULARY = ["model.source_vocab_size=32768", "model.target_vocab_size=32768"]
SMALL = [
    "model.source_vocab_size=10000",
    "model.target_vocab_size=10000",
    "model.dropout=0.3",
    *(f"model.{side}.{name}={value}" for side in ("encoder", "decoder") for name, value in
      {"dim": 128, "ffn_dim": 256, "num_heads": 4, "num_layers": 4}.items()),
]  # fmt: skip
NARROW = [
    *SMALL,
    "model.encoder.num_layers=18",
    *(f"model.{side}.{name}={value}" for side in ("encoder", "decoder") for name, value in
      {"dim": 96, "ffn_dim": 192}.items()),
    "model.encoder.connection.kind=dlcl",
    "model.decoder.connection.kind=dlcl",
]  # fmt: skip
HALF = [
    "model.source_vocab_size=16384",
    "model.target_vocab_size=16384",
    *(f"model.{side}.{name}={value}" for side in ("encoder", "decoder") for name, value in
      {"dim": 256, "ffn_dim": 1024, "num_heads": 4}.items()),
]  # fmt: skip

ODD = [*HALF, "model.source_vocab_size=15845", "model.target_vocab_size=15845"]

# name -> preset, overrides, tokens per batch, whether the GPU's engine is used
CASES: dict[str, tuple[str, list[str], int, bool]] = {
    "dlcl-30l 32k": ("en-de-pre-dlcl-30l", VOCABULARY, 32768, True),
    "pre-30l 32k": ("en-de-pre-20l", [*VOCABULARY, "model.encoder.num_layers=30"], 32768, True),
    "base-6l 32k": ("en-de-pre-base", VOCABULARY, 32768, True),
    "dlcl-30l 4k": ("en-de-pre-dlcl-30l", VOCABULARY, 4096, True),
    "base-6l 4k": ("en-de-pre-base", VOCABULARY, 4096, True),
    "d256 dlcl-30l 16k": ("en-de-pre-dlcl-30l", HALF, 16384, True),
    "d256 base-6l 16k": ("en-de-pre-base", HALF, 16384, True),
    "d256 base-6l 16k V 15,845": ("en-de-pre-base", ODD, 16384, True),
    "4+4 d128 4k": ("en-de-pre-base", SMALL, 4096, True),
    "4+4 d128 4k eager": ("en-de-pre-base", SMALL, 4096, False),
    "18+4 d96 dlcl 4k": ("en-de-pre-base", NARROW, 4096, True),
    "18+4 d96 dlcl 4k eager": ("en-de-pre-base", NARROW, 4096, False),
    "dlcl-100l 32k": ("en-de-pre-dlcl-30l", [*VOCABULARY, "model.encoder.num_layers=100"], 32768, True),
    "dlcl-30l 4k eager": ("en-de-pre-dlcl-30l", VOCABULARY, 4096, False),
    "big-6l 32k": ("en-de-pre-big", VOCABULARY, 32768, True),
}
PEERS = ("marian 6 eager", "marian 30 eager", "marian 6 compiled", "marian 30 compiled")
# What matters most comes first; what shares its compiled layers stands together.
ROWS = [
    *("dlcl-30l 32k", "pre-30l 32k", "base-6l 32k", "marian 6 eager", "marian 30 eager"),
    *("dlcl-30l 4k", "base-6l 4k", "d256 dlcl-30l 16k", "d256 base-6l 16k"),
    *("4+4 d128 4k", "4+4 d128 4k eager", "18+4 d96 dlcl 4k", "18+4 d96 dlcl 4k eager"),
    *("marian 6 compiled", "dlcl-100l 32k", "dlcl-30l 4k eager", "big-6l 32k"),
]
# One case of each set of compiled layers and shapes.
TO_WARM = [
    "dlcl-30l 32k",
    "dlcl-30l 4k",
    "d256 dlcl-30l 16k",
    "4+4 d128 4k",
    "18+4 d96 dlcl 4k",
    "marian 6 compiled",
    "big-6l 32k",
]
TINY = [
    *(f"model.{side}.{name}={value}" for side in ("encoder", "decoder") for name, value in
      {"dim": 32, "ffn_dim": 64, "num_heads": 2, "num_layers": 2}.items()),
    "model.source_vocab_size=200", "model.target_vocab_size=200",
]  # fmt: skip
WHAT = (
    "target tokens/s of whole training steps (forward, backward, fused Adam), bf16, V 32,768 (d256 16,384, smaller "
    "models 10,000; others are named), padding not counted; Marian: sentences of 32 tokens"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path)
    parser.add_argument("--only", nargs="*", default=ROWS, metavar="ROW", help=f"of {', '.join([*CASES, *PEERS])}")
    parser.add_argument("--profile", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no row after this time")
    parser.add_argument("--peer-seconds", type=float, default=90, help="time limit for a compiled peer")
    parser.add_argument("--unaligned", action="store_true", help="the loss's products are as wide as the vocabulary")
    parser.add_argument("--warm", action="store_true", help="only compile, all rows side by side")
    parser.add_argument("--tiny", action="store_true", help="tiny models and batches, on any device: to try this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for name in [*arguments.only, *arguments.profile]:
        if name not in CASES and name not in PEERS:
            parser.error(f"there is no row {name!r}")
    if not arguments.tiny and not torch.cuda.is_available():
        parser.error("this machine has no CUDA device; --tiny tries the file without")
    if arguments.warm:
        warm(arguments)
        return
    torch.set_float32_matmul_precision("high")
    if arguments.unaligned:
        loss.GPU_ROWS = 1
    rows: dict[str, object] = {}
    run = {"command": " ".join(["python", *sys.argv]), "lengths": str(arguments.lengths), "rows": rows}
    results = {"machine": describe_machine(), "what": WHAT, "runs": [run]}
    lengths, begun = read_lengths(arguments.lengths), time.perf_counter()
    for name in arguments.only:
        left = arguments.seconds - (time.perf_counter() - begun)
        if left <= 0:
            print(f"{name:<26}left out: {arguments.seconds:.0f} s are over", flush=True)
            continue
        rows[name] = run_row(name, lengths, arguments, left)
        save(results, arguments.json)
    for name in arguments.profile:
        rows[f"profile {name}"] = profile(name, lengths)
        save(results, arguments.json)


def run_row(name: str, lengths: Lengths, arguments: argparse.Namespace, left: float) -> object:
    """One row, whatever happens to it: one must not cost the others."""
    begun = time.perf_counter()
    try:
        if name.endswith("compiled") and not arguments.child:
            row = run_child(name, arguments, min(left, arguments.peer_seconds))
        elif name in PEERS:
            row = run_peer(name, arguments)
        else:
            row = run_case(name, lengths, arguments)
    except Exception as error:
        print(f"{name:<26}failed: {type(error).__name__}: {error}", flush=True)
        return {"error": repr(error)}
    row["seconds_in_all"] = time.perf_counter() - begun
    if not arguments.child:
        print(describe(name, row), flush=True)
    return row


def describe(name: str, row: dict[str, Any]) -> str:
    text = f"{name:<26}{row['tokens_per_second']:>10,.0f} tokens/s {row['milliseconds_per_step']:8.1f} ms"
    text += f" {row.get('tflops', float('nan')):6.0f} TFLOP/s {row['memory_gib']:6.1f} GiB"
    return text + f"  first step {row['first_step_seconds']:.0f} s, all {row['seconds_in_all']:.0f} s"


def run_case(name: str, lengths: Lengths, arguments: argparse.Namespace) -> dict[str, Any]:
    preset, overrides, tokens, graphed = CASES[name]
    on_gpu = torch.cuda.is_available()
    recipe = load_recipe(preset, [*overrides, *TINY] if arguments.tiny else overrides)
    speed = measure_training(
        recipe.model, recipe.training, lengths, device="cuda" if on_gpu else "cpu",
        trial=TrainingTrial(
            tokens=256 if arguments.tiny else tokens, steps=arguments.steps, warm_ups=3, eager=not graphed
        ),
    )  # fmt: skip
    return dataclasses.asdict(speed)


def run_child(name: str, arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """One row in a process of its own, which a time limit can end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        command = child_command(name, arguments, arguments.steps, path)
        done = subprocess.run(command, timeout=seconds, capture_output=True, text=True)
        if done.returncode or not path.exists():
            raise RuntimeError(f"exit status {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
        row: dict[str, Any] = json.loads(path.read_text())["runs"][0]["rows"][name]
    if "error" in row:
        raise RuntimeError(row["error"])
    return row


def child_command(name: str, arguments: argparse.Namespace, steps: int, path: Path | None) -> list[str]:
    command = [sys.executable, __file__, "--child", "--only", name, "--steps", str(steps)]
    command += ["--lengths", str(arguments.lengths)] if arguments.lengths else []
    command += ["--tiny"] if arguments.tiny else []
    return [*command, "--json", str(path)] if path else command


def warm(arguments: argparse.Namespace) -> None:
    """Each row's first step, all at once: what is compiled then lies in the cache on disk."""
    begun = time.perf_counter()
    names = [name for name in arguments.only if name in TO_WARM]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    children = {
        name: subprocess.Popen(child_command(name, arguments, 1, None), env=environment, stdout=subprocess.DEVNULL)
        for name in names
    }
    for name, child in children.items():
        left = arguments.seconds - (time.perf_counter() - begun)
        try:
            child.wait(timeout=None if left == float("inf") else max(left, 0.1))
            print(f"{name:<26}warm after {time.perf_counter() - begun:.0f} s", flush=True)
        except subprocess.TimeoutExpired:
            child.kill()
            print(f"{name:<26}not warm after {time.perf_counter() - begun:.0f} s", flush=True)


def run_peer(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Hugging Face Marian: the same sizes, bf16 autocast, fused Adam, label smoothing; every sentence equally long."""
    from transformers import MarianConfig, MarianMTModel

    _, depth, mode = name.split()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    length, tokens, vocabulary = (8, 64, 200) if arguments.tiny else (32, 32768, 32768)
    dim, heads, layers, decoder_layers = (32, 2, 2, 1) if arguments.tiny else (512, 8, int(depth), 6)
    torch._dynamo.reset()
    free_memory(torch.device(device))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    config = MarianConfig(
        vocab_size=vocabulary, decoder_vocab_size=vocabulary, d_model=dim, encoder_layers=layers,
        decoder_layers=decoder_layers, encoder_ffn_dim=4 * dim, decoder_ffn_dim=4 * dim,
        encoder_attention_heads=heads, decoder_attention_heads=heads, dropout=0.1, attention_dropout=0.1,
        activation_dropout=0.1, activation_function="relu", pad_token_id=1, eos_token_id=2,
        decoder_start_token_id=2, use_cache=False, max_position_embeddings=1024,
    )  # fmt: skip
    model = MarianMTModel(config).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model, dynamic=False) if mode == "compiled" else model
    ids = torch.randint(4, vocabulary, (tokens // length, length), device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            logits = forward(input_ids=ids, decoder_input_ids=ids).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten(), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def seconds_of(steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    first = seconds_of(1)
    seconds_of(3)
    seconds = seconds_of(arguments.steps)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_batch": tokens,
        "tokens_per_second": tokens * arguments.steps / seconds,
        "milliseconds_per_step": 1000 * seconds / arguments.steps,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan"),
        "first_step_seconds": first,
    }


KINDS = {
    "matrix products": ("gemm", "cutlass", "nvjet", "cublas", "_relu_product"),
    "attention": ("_forward", "_backward_queries", "_backward_keys"),
    "mixture": ("_mix", "_gather", "_enter", "mix_row", "mix_ahead", "gather_column", "gather_ahead"),
    "optimiser": ("_adam", "_root", "_judge", "multi_tensor", "FusedAdam"),
    "passes": ("triton_", "_norm", "_relu", "_add_up"),
    "gradients added up": ("_add",),
}


def profile(name: str, lengths: Lengths) -> dict[str, float]:
    """Milliseconds a step by kind of kernel, and the longest kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    preset, overrides, tokens, graphed = CASES[name]
    steps = 5
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        measure_training(
            (recipe := load_recipe(preset, overrides)).model, recipe.training, lengths, device="cuda",
            trial=TrainingTrial(tokens=tokens, steps=steps, warm_ups=1, eager=not graphed),
        )  # fmt: skip
    # Of the six steps and the recording's passes; shares are what counts here.
    totals: dict[str, float] = {}
    events = sorted(recorded.key_averages(), key=lambda event: -event.device_time_total)
    for event in events:
        kind = next((kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)), "other")
        totals[kind] = totals.get(kind, 0.0) + event.device_time_total / 1000
    whole = sum(totals.values())
    print(f"profile of {name}: " + ", ".join(f"{kind} {time / whole:.1%}" for kind, time in totals.items()))
    for event in events[:40]:
        print(f"  {event.device_time_total / 1000:9.2f} ms {event.count:6} x {event.key[:110]}")
    return totals


def read_lengths(path: Path | None) -> Lengths:
    if path is None:
        return typical_lengths()
    stored = np.load(path)
    sample = np.random.default_rng(1).permutation(len(stored["source"]))[:60_000]
    return stored["source"][sample].astype(np.int64), stored["target"][sample].astype(np.int64)


def describe_machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return f"{device}, torch {torch.__version__}, Python {platform.python_version()}"


def save(results: dict[str, object], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
