"""How much padding the batches of a dataset have, and how fast the loader alone builds them.

    python benchmarks/loader.py DATASET [--tokens 4096 32768] [--layouts padded packed] [--seconds 3] [--json FILE]

No model runs. "ahead" is the rate through the prefetching thread while the consumer does nothing but
take updates, by the wall clock; the other rate is by the time of the one core that builds, which other work on the
machine disturbs less.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from deepnmt.data.batching import BatchingConfig, BatchStream, Update
from deepnmt.data.dataset import Dataset
from deepnmt.data.loader import Loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--layouts", nargs="+", default=["padded", "packed"])
    parser.add_argument("--max-shapes", type=int, default=BatchingConfig.max_shapes)
    parser.add_argument("--bpe-dropout", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    dataset = Dataset.open(arguments.dataset)
    rows = []
    for layout in arguments.layouts:
        for tokens in arguments.tokens:
            config = BatchingConfig(
                layout=layout,
                tokens_per_batch=tokens,
                max_shapes=arguments.max_shapes,
                bpe_dropout=arguments.bpe_dropout,
            )
            rows.append(measure(dataset, config, arguments.seconds))
            print(line(rows[-1]), flush=True)
    machine = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__}
    print(f"on {machine}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine, "rows": rows}, indent=2) + "\n")


def measure(dataset: Dataset, config: BatchingConfig, seconds: float) -> dict[str, Any]:
    started = time.perf_counter()
    stream = BatchStream.of(dataset, config, seed=1)
    made = time.perf_counter()
    plan = stream.plan(0)
    planned = time.perf_counter()
    source, target = stream.padding() if config.bpe_dropout == 0 else sampled_padding(stream)
    sizes = {(int(rows), int(shape)) for rows, shape in zip(plan.stops - plan.starts, plan.shape_of, strict=True)}
    alone = rate(stream, seconds, time.process_time)
    with Loader(stream) as loader:
        ahead = rate(loader, seconds, time.perf_counter)
    return {
        "layout": config.layout,
        "tokens_per_batch": config.tokens_per_batch,
        "batches": len(plan),
        "shapes": len(sizes) if config.layout == "padded" else 1,
        "padding_source": source,
        "padding_target": target,
        "padding": padding_of_both(stream, source, target),
        "open_seconds": made - started,
        "plan_seconds": planned - made,
        "batches_per_core_second": alone[0],
        "target_tokens_per_core_second": alone[1],
        "ahead_batches_per_second": ahead[0],
        "ahead_target_tokens_per_second": ahead[1],
    }


def padding_of_both(stream: BatchStream, source: float, target: float) -> float:
    tokens = [int(lengths.sum()) for lengths in stream.pairs.lengths]
    return 1 - sum(tokens) / (tokens[0] / (1 - source) + tokens[1] / (1 - target))


def sampled_padding(stream: BatchStream) -> tuple[float, float]:
    """With BPE-dropout the lengths are known only when the batches are built."""
    batches = [batch for _ in range(50) for batch in next(stream).batches]
    tokens = sum(batch.num_source_tokens for batch in batches), sum(batch.num_target_tokens for batch in batches)
    positions = sum(batch.source.numel() for batch in batches), sum(batch.target_output.numel() for batch in batches)
    return 1 - tokens[0] / positions[0], 1 - tokens[1] / positions[1]


def rate(updates: Iterator[Update], seconds: float, clock: Callable[[], float]) -> tuple[float, float]:
    """Batches and target tokens per second."""
    next(updates)
    started = clock()
    batches = tokens = 0
    while clock() - started < seconds:
        update = next(updates)
        batches += len(update.batches)
        tokens += update.num_target_tokens
    elapsed = clock() - started
    return batches / elapsed, tokens / elapsed


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['layout']} {row['tokens_per_batch']:>6,}: {row['batches']:,} batches, {row['shapes']} shapes, "
        f"padding {row['padding']:.2%} (source {row['padding_source']:.2%}, target {row['padding_target']:.2%}), "
        f"plan {row['plan_seconds']:.2f} s; {row['batches_per_core_second']:,.0f} batches/s, "
        f"{row['target_tokens_per_core_second'] / 1e6:.1f} M target tokens/s of one core "
        f"({row['ahead_target_tokens_per_second'] / 1e6:.1f} M/s ahead)"
    )


if __name__ == "__main__":
    main()
