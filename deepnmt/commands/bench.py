"""`deepnmt bench`: training and generation speed of a recipe on this machine, with random weights."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from deepnmt.analysis.config import TrainingTrial, Workload
from deepnmt.commands.options import MACHINE, OVERRIDES, RECIPE, add_options, add_settings, settings_in
from deepnmt.devices import choose_device, device_name, tune_for_translation, use_threads

EXAMPLE = """deepnmt bench train en-de-pre-dlcl-30l --tokens 32768
  deepnmt bench generate en-de-pre-dlcl-30l --precision int8
  deepnmt bench generate en-de-pre-dlcl-30l --json \\
      --encoder-layers 6 16 20 25 30 --decoder-layers 4 6 8"""
TRAIN = {
    "tokens": "tokens per batch, on each side",
    "eager": "measure plain torch on padded batches, on a GPU too",
    "steps": "number of timed updates",
}
GENERATE = {
    "batch": "sentences per batch",
    "beam": "beam size",
    "length": "subwords per sentence, source and target",
    "workers": "concurrent batches, one core each",
    "repeats": "number of repetitions; the fastest is reported",
}
DEPTHS = {"--encoder-layers N+": "encoder depths to compare", "--decoder-layers N+": "decoder depths to compare"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, {"mode {train,generate}": "what to measure"} | RECIPE | OVERRIDES)
    precision = {"--precision fp32|bf16|fp16|int8": "train: instead of the recipe's; generate: fp32 by default"}
    add_options(parser, MACHINE | precision | {"--json": "print the figures as JSON"}, absent=None)
    train = parser.add_argument_group("train")
    add_settings(train, TrainingTrial, TRAIN)
    add_options(train, {"--data DATASET": "use the sentence lengths of this dataset"}, absent=None)
    generate = parser.add_argument_group("generate")
    add_settings(generate, Workload, GENERATE)
    add_options(generate, DEPTHS, absent=[])


def run(arguments: argparse.Namespace) -> None:
    if arguments.mode == "generate":
        tune_for_translation()
    use_threads(arguments.threads)
    arguments.device = choose_device(arguments.device)
    {"train": _train, "generate": _generate}[arguments.mode](arguments)


def _train(arguments: argparse.Namespace) -> None:
    from deepnmt.api.bench import bench_training

    trial = settings_in(TrainingTrial, arguments)
    if arguments.precision:
        arguments.overrides.append(f"training.precision={arguments.precision}")
    speed = bench_training(
        arguments.recipe, arguments.overrides, trial=trial, data=arguments.data, device=arguments.device
    )
    if arguments.json:
        print(json.dumps({**_about(arguments), **asdict(speed)}, indent=2))
        return
    engine = "CUDA graphs" if speed.engine == "GraphEngine" else "plain torch"
    print(f"{arguments.recipe} on {device_name(arguments.device)}, {trial.tokens:,} tokens per step, {engine}")
    print(f"{speed.tokens_per_second:,.0f} target tokens/s, {speed.milliseconds_per_step:.1f} ms per step")
    memory = f", peak memory {speed.memory_gib:.1f} GiB" if arguments.device.startswith("cuda") else ""
    print(f"{speed.tflops:,.2f} TFLOP/s of matrix products, {speed.padding:.1%} padding{memory}")


def _generate(arguments: argparse.Namespace) -> None:
    from deepnmt.api.bench import bench_generation

    workload = settings_in(Workload, arguments)
    arguments.precision = arguments.precision or "fp32"
    names = ("encoder_layers", "decoder_layers", "device", "precision")
    options = {name: getattr(arguments, name) for name in names}
    speeds = bench_generation(arguments.recipe, arguments.overrides, workload=workload, **options)
    if arguments.json:
        report = {**_about(arguments), "precision": arguments.precision, **asdict(workload)}
        print(json.dumps(report | {"speeds": [asdict(speed) for speed in speeds]}, indent=2))
        return
    batches = f"{workload.workers} x {workload.batch}" if workload.workers > 1 else str(workload.batch)
    print(
        f"{arguments.recipe} on {device_name(arguments.device)}, {arguments.precision}: {batches} sentences of "
        f"{workload.length} subwords, beam {workload.beam}\nencoder  decoder    tokens/s   ms/step  encoder"
    )
    for speed in speeds:
        print(
            f"{speed.encoder_layers:>7}  {speed.decoder_layers:>7}  {speed.tokens_per_second:>10,.0f}"
            f"  {speed.milliseconds_per_step:>8.2f}  {speed.encoder_share:>7.1%}",
            flush=True,
        )


def _about(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    return {
        "preset": arguments.recipe,
        "overrides": arguments.overrides,
        "device": device_name(arguments.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
