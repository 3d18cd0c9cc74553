"""`deepnmt bench`: how fast a preset generates or trains on this machine, with random weights."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepnmt.devices import choose_device, use_threads
from deepnmt.errors import InputError

EXAMPLE = """deepnmt bench train en-de-pre-dlcl-30l --tokens 32768
  deepnmt bench generate en-de-pre-dlcl-30l --precision int8
  deepnmt bench generate en-de-pre-dlcl-30l --encoder-layers 6 16 20 25 30 --decoder-layers 4 6 8 --json"""

MODES = ("train", "generate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mode", choices=MODES, metavar="MODE", help=" or ".join(MODES))
    parser.add_argument("preset", metavar="PRESET", help="a preset's name or a recipe file")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.field=value", help="settings instead")
    parser.add_argument("--device", metavar="cpu|cuda", help="default: cuda where there is one")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    _add_train(parser.add_argument_group("train"))
    _add_generate(parser.add_argument_group("generate"))


def _add_generate(group: Any) -> None:
    group.add_argument("--batch", type=int, default=32, metavar="N", help="sentences at once (%(default)s)")
    group.add_argument("--beam", type=int, default=4, metavar="N", help="(%(default)s)")
    group.add_argument("--length", type=int, default=32, metavar="N", help="of source and target (%(default)s)")
    group.add_argument("--precision", default="fp32", metavar="fp32|bf16|fp16|int8", help="(%(default)s)")
    group.add_argument("--threads", type=int, metavar="N", help="of the CPU (all cores that this process may use)")
    group.add_argument("--workers", type=int, default=1, metavar="N", help="batches side by side, a core each (1)")
    group.add_argument("--repeats", type=int, default=3, metavar="N", help="the best of so many (%(default)s)")
    group.add_argument("--encoder-layers", type=int, nargs="+", default=[], metavar="N", help="depths to compare")
    group.add_argument("--decoder-layers", type=int, nargs="+", default=[], metavar="N", help="depths to compare")


def _add_train(group: Any) -> None:
    group.add_argument("--tokens", type=int, default=4096, metavar="N", help="in a batch, on either side (%(default)s)")
    group.add_argument("--steps", type=int, default=20, metavar="N", help="timed, after five others (%(default)s)")
    group.add_argument("--eager", action="store_true", help="plain torch on padded batches, also on a GPU")
    group.add_argument("--data", type=Path, metavar="DATASET", help="sentence lengths as there (else made up)")


def run(arguments: argparse.Namespace) -> None:
    {"train": _train, "generate": _generate}[arguments.mode](arguments)


def _train(arguments: argparse.Namespace) -> None:
    import torch

    from deepnmt.analysis.training_speed import measure_training, typical_lengths
    from deepnmt.config import load_recipe
    from deepnmt.data.dataset import Dataset

    device = choose_device(arguments.device)
    recipe = load_recipe(arguments.preset, arguments.overrides)
    lengths = typical_lengths()
    if arguments.data is not None:
        corpus = next(iter(Dataset.open(arguments.data).train.values()))
        lengths = (corpus.source_lengths, corpus.target_lengths)
    speed = measure_training(
        recipe.model,
        recipe.training,
        lengths,
        tokens_per_batch=arguments.tokens,
        device=device,
        graphed=device.startswith("cuda") and not arguments.eager,
        steps=arguments.steps,
    )
    if arguments.json:
        about = {"preset": arguments.preset, "overrides": arguments.overrides, "device": _device_name(device)}
        print(json.dumps({**about, "torch": torch.__version__, **asdict(speed)}, indent=2))
        return
    print(f"{arguments.preset} on {_device_name(device)}, {arguments.tokens:,} tokens a step, {speed.engine}")
    print(f"{speed.tokens_per_second:,.0f} target tokens/s, {speed.milliseconds_per_step:.1f} ms a step")
    memory = f", {speed.memory_gib:.1f} GiB at most" if device.startswith("cuda") else ""
    print(f"{speed.tflops:,.2f} TFLOP/s of matrix products, {speed.padding:.1%} padding{memory}")


def _generate(arguments: argparse.Namespace) -> None:

    import torch

    from deepnmt.analysis.generation_speed import Workload, measure_generation, with_depth
    from deepnmt.config import load_recipe

    for name in ("batch", "beam", "length", "workers", "repeats"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    device = choose_device(arguments.device)
    config = load_recipe(arguments.preset, arguments.overrides).model
    use_threads(arguments.threads)
    workload = Workload(
        **{name: getattr(arguments, name) for name in ("batch", "beam", "length", "workers", "repeats")}
    )
    variants = _checked(lambda: with_depth(config, arguments.encoder_layers, arguments.decoder_layers))
    if not arguments.json:
        print(_heading(arguments, device))
    speeds = []
    for variant in variants:
        speed = measure_generation(variant, workload, device=device, precision=arguments.precision)
        speeds.append(speed)
        if not arguments.json:
            print(
                f"{speed.encoder_layers:>7}  {speed.decoder_layers:>7}  {speed.tokens_per_second:>10,.0f}"
                f"  {speed.milliseconds_per_step:>8.2f}  {speed.encoder_share:>7.1%}",
                flush=True,
            )
    if arguments.json:
        report = {
            "preset": arguments.preset,
            "overrides": arguments.overrides,
            "device": _device_name(device),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "precision": arguments.precision,
            **asdict(workload),
            "speeds": [asdict(speed) for speed in speeds],
        }
        print(json.dumps(report, indent=2))


def _checked(build: Any) -> Any:
    try:
        return build()
    except ValueError as error:
        raise InputError(str(error)) from error


def _heading(arguments: argparse.Namespace, device: str) -> str:
    what = f"{arguments.workers} x {arguments.batch}" if arguments.workers > 1 else str(arguments.batch)
    return (
        f"{arguments.preset} on {_device_name(device)}, {arguments.precision}: {what} sentences of {arguments.length}"
        f" subwords, beam {arguments.beam}\nencoder  decoder    tokens/s   ms/step  encoder"
    )


def _device_name(device: str) -> str:
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU with {torch.get_num_threads()} threads"
