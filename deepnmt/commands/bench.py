"""`deepnmt bench`: how fast a preset trains or generates on this machine, with random weights."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepnmt.analysis.config import TrainingTrial, Workload
from deepnmt.commands.options import add_settings, settings_in
from deepnmt.devices import choose_device, device_name, tune_for_translation, use_threads
from deepnmt.settings import from_table

EXAMPLE = """deepnmt bench train en-de-pre-dlcl-30l --tokens 32768
  deepnmt bench generate en-de-pre-dlcl-30l --precision int8
  deepnmt bench generate en-de-pre-dlcl-30l --encoder-layers 6 16 20 25 30 --decoder-layers 4 6 8 --json"""

MODES = ("train", "generate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mode", choices=MODES, metavar="MODE", help=" or ".join(MODES))
    parser.add_argument("recipe", metavar="RECIPE", help="the name of a bundled preset, or a recipe file (.toml)")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="section.field=value", help="settings that replace the recipe's"
    )
    parser.add_argument("--device", metavar="cpu|cuda", help="default: cuda if available")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all available cores)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    train = parser.add_argument_group("train")
    help_of = {"tokens": "tokens in a batch, on either side", "eager": "plain torch on padded batches, also on a GPU"}
    add_settings(train, TrainingTrial, help_of | {"steps": "timed updates"})
    train.add_argument("--data", type=Path, metavar="DATASET", help="take the sentence lengths from this dataset")
    generate = parser.add_argument_group("generate")
    help_of = {"batch": "sentences at once", "beam": "beam size", "length": "subwords of source and target"}
    help_of |= {"workers": "batches at a time, one core each", "repeats": "repetitions, of which the best counts"}
    add_settings(generate, Workload, help_of)
    generate.add_argument("--precision", default="fp32", metavar="fp32|bf16|fp16|int8", help="(default: %(default)s)")
    for side in ("encoder", "decoder"):
        generate.add_argument(
            f"--{side}-layers", type=int, nargs="+", default=[], metavar="N", help="depths to compare"
        )


def run(arguments: argparse.Namespace) -> None:
    if arguments.mode == "generate":
        tune_for_translation()
    use_threads(arguments.threads)
    arguments.device = choose_device(arguments.device)
    {"train": _train, "generate": _generate}[arguments.mode](arguments)


def _train(arguments: argparse.Namespace) -> None:
    from deepnmt.api.bench import bench_training

    trial = from_table(TrainingTrial, settings_in(TrainingTrial, arguments))
    speed = bench_training(
        arguments.recipe, arguments.overrides, trial=trial, data=arguments.data, device=arguments.device
    )
    if arguments.json:
        print(json.dumps({**_about(arguments), **asdict(speed)}, indent=2))
        return
    print(f"{arguments.recipe} on {device_name(arguments.device)}, {trial.tokens:,} tokens a step, {speed.engine}")
    print(f"{speed.tokens_per_second:,.0f} target tokens/s, {speed.milliseconds_per_step:.1f} ms a step")
    memory = f", {speed.memory_gib:.1f} GiB at most" if arguments.device.startswith("cuda") else ""
    print(f"{speed.tflops:,.2f} TFLOP/s of matrix products, {speed.padding:.1%} padding{memory}")


def _generate(arguments: argparse.Namespace) -> None:
    from deepnmt.api.bench import bench_generation

    workload = from_table(Workload, settings_in(Workload, arguments))
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
