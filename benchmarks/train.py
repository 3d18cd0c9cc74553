"""Training speed on a GPU: our presets against Hugging Face Marian of the same size, in one run.

    python benchmarks/train.py --lengths lengths.npz --json out.json

`lengths.npz` holds the arrays `source` and `target`: sentence lengths in subwords of the corpus whose batches are to be
imitated (`deepnmt prepare` prints them to DATASET; without the file a log-normal stand-in is used). The peer gets
sentences of one length, which is the best case for it: no padding at all.
"""

import argparse
import dataclasses
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from deepnmt.analysis.training_speed import Lengths, TrainingSpeed, measure_training, typical_lengths
from deepnmt.config import Recipe, load_recipe

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

# name -> preset, overrides, tokens per batch, whether the GPU's engine is used
CASES: dict[str, tuple[str, list[str], int, bool]] = {
    "dlcl-30l 32k": ("en-de-pre-dlcl-30l", VOCABULARY, 32768, True),
    "pre-30l 32k": ("en-de-pre-20l", [*VOCABULARY, "model.encoder.num_layers=30"], 32768, True),
    "base-6l 32k": ("en-de-pre-base", VOCABULARY, 32768, True),
    "dlcl-30l 4k": ("en-de-pre-dlcl-30l", VOCABULARY, 4096, True),
    "base-6l 4k": ("en-de-pre-base", VOCABULARY, 4096, True),
    "dlcl-30l 4k eager": ("en-de-pre-dlcl-30l", VOCABULARY, 4096, False),
    "4+4 d128 4k": ("en-de-pre-base", SMALL, 4096, True),
    "4+4 d128 4k eager": ("en-de-pre-base", SMALL, 4096, False),
    "18+4 d96 dlcl 4k": ("en-de-pre-base", NARROW, 4096, True),
    "18+4 d96 dlcl 4k eager": ("en-de-pre-base", NARROW, 4096, False),
    "dlcl-100l 32k": ("en-de-pre-dlcl-30l", [*VOCABULARY, "model.encoder.num_layers=100"], 32768, True),
    "big-6l 32k": ("en-de-pre-big", VOCABULARY, 32768, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--peers", nargs="*", default=["6 eager", "6 compiled", "30 eager", "30 compiled"])
    parser.add_argument("--profile", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    results: dict[str, object] = {"machine": describe_machine(), "command": " ".join(sys.argv)}
    lengths = read_lengths(arguments.lengths)
    for name in arguments.cases:
        results[name] = run_case(name, lengths, arguments.steps)
        save(results, arguments.json)
    for name in arguments.peers:
        results[f"marian {name}"] = run_peer(name, arguments.steps)
        save(results, arguments.json)
    for name in arguments.profile:
        results[f"profile {name}"] = profile(name, lengths)
        save(results, arguments.json)


def run_case(name: str, lengths: Lengths, steps: int) -> object:
    preset, overrides, tokens, graphed = CASES[name]
    begun = time.perf_counter()
    try:
        speed = measure(load_recipe(preset, overrides), lengths, tokens, graphed, steps)
    except Exception as error:  # one case must not cost the others
        print(f"{name:<26}failed: {type(error).__name__}: {error}", flush=True)
        return {"error": repr(error)}
    print(
        f"{name:<26}{speed.tokens_per_second:>10,.0f} tokens/s {speed.milliseconds_per_step:8.1f} ms "
        f"{speed.tflops:6.0f} TFLOP/s {speed.memory_gib:6.1f} GiB  padding {speed.padding:.1%}  "
        f"first step {speed.first_step_seconds:.0f} s, all {time.perf_counter() - begun:.0f} s",
        flush=True,
    )
    return dataclasses.asdict(speed)


def measure(recipe: Recipe, lengths: Lengths, tokens: int, graphed: bool, steps: int) -> TrainingSpeed:
    return measure_training(
        recipe.model, recipe.training, lengths, tokens_per_batch=tokens, device="cuda", graphed=graphed, steps=steps
    )


def run_peer(name: str, steps: int, length: int = 32, tokens: int = 32768) -> dict[str, float]:
    """Hugging Face Marian: the same sizes, bf16 autocast, fused Adam, label smoothing; every sentence `length` long."""
    from transformers import MarianConfig, MarianMTModel

    depth, mode = name.split()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    config = MarianConfig(
        vocab_size=32768, decoder_vocab_size=32768, d_model=512, encoder_layers=int(depth), decoder_layers=6,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8,
        dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, activation_function="relu",
        pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, use_cache=False, max_position_embeddings=1024,
    )  # fmt: skip
    model = MarianMTModel(config).cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model) if mode == "compiled" else model
    ids = torch.randint(4, 32768, (tokens // length, length), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = forward(input_ids=ids, decoder_input_ids=ids).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten(), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    result = {
        "tokens_per_second": tokens * steps / seconds,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    print(
        f"marian {name:<19}{result['tokens_per_second']:>10,.0f} tokens/s {result['memory_gib']:6.1f} GiB", flush=True
    )
    return result


KINDS = {
    "matrix products": ("gemm", "cutlass", "nvjet", "cublas"),
    "attention": ("_forward", "_backward_queries", "_backward_keys"),
    "mixture": ("_mix", "_gather", "_enter"),
    "optimiser": ("multi_tensor", "FusedAdam"),
    "compiled passes": ("triton_",),
}


def profile(name: str, lengths: Lengths) -> dict[str, float]:
    """Milliseconds a step by kind of kernel, and the longest kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    preset, overrides, tokens, graphed = CASES[name]
    steps = 5
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        measure_training(
            (recipe := load_recipe(preset, overrides)).model, recipe.training, lengths, tokens_per_batch=tokens,
            device="cuda", graphed=graphed, steps=steps, warm_ups=1,
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
