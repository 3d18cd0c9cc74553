"""How long the first step of a run takes in a new process, phase by phase: with empty caches, and with filled ones.

    python benchmarks/cold_start.py

Two processes, one after the other, share caches of torch and Triton that are empty at first. The figures are seconds
since a process was started. A step's first pass compiles, two more precede the fourth, which is recorded.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="dlcl-30l 4k", help="of benchmarks/train.py")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on any device: to try this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments)), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="deepnmt-cold-") as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        for kind in ("empty caches", "filled caches"):
            environment = {**os.environ, **caches, "STARTED_AT": str(time.time())}
            command = [sys.executable, __file__, "--child", *sys.argv[1:]]
            found = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
            print(f"{kind}: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.pop("phases").items()))
            for name, value in found.items():
                print(f"  {name}: {value}", flush=True)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    begun = float(os.environ["STARTED_AT"])
    phases: dict[str, float] = {}

    def reached(name: str) -> None:
        phases[name] = time.time() - begun

    reached("started")
    import torch

    reached("torch")
    from train import CASES, TINY

    from deepnmt.analysis.training_speed import random_corpus, typical_lengths, wait_for
    from deepnmt.config import Recipe, load_recipe
    from deepnmt.data.batching import BatchingConfig, BatchStream
    from deepnmt.data.loader import Loader
    from deepnmt.training import assembly, graph_engine
    from deepnmt.training.distributed import World
    from deepnmt.training.trainer import step as take_step

    reached("imports")
    preset, overrides, tokens, _ = CASES[arguments.case]
    recipe = load_recipe(preset, [*overrides, *TINY] if arguments.tiny else overrides)
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    tokens = 256 if arguments.tiny else tokens
    torch.set_float32_matmul_precision("high")
    batching = BatchingConfig(tokens_per_batch=tokens, layout="packed" if on_gpu else "padded")
    recipe = Recipe(model=recipe.model, training=recipe.training, batching=batching)
    state, engine = assembly.build_training(recipe, World(0, 1, torch.device(device)), recipe.model)
    wait_for(device)
    reached("model")
    run_pass, compiled, losses = graph_engine.GraphEngine._run_pass, watch_kernels(), []

    def timed(self: Any, *given: Any) -> None:
        run_pass(self, *given)
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        number = sum(name.startswith("pass") for name in phases) + 1
        reached(f"pass {number}")

    graph_engine.GraphEngine._run_pass = timed
    corpora = {"random": random_corpus(typical_lengths(5000), recipe.model)}
    stream = BatchStream(corpora, batching, seed=1, tokens_per_update=tokens)
    with Loader(stream, pin_memory=on_gpu) as updates:
        update = next(updates)
        reached("data")
        for number in (1, 2, 3):
            sums, _ = take_step(state, update, engine)
            losses.append(sums.tolist()[0].hex())
            reached(f"step {number}")
            update = next(updates)
    return {"phases": phases, "losses": losses, **compiled, **describe_compilation()}


def watch_kernels() -> dict[str, Any]:
    """Filled with what this process compiles or finds in Triton's cache, from now on."""
    seen: dict[str, Any] = {"kernels compiled here": [], "kernels found": 0, "seconds to compile here": 0.0}
    try:
        from triton import knobs
    except ImportError:
        return seen

    def listen(*, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            seen["kernels found"] += 1
        else:
            seen["kernels compiled here"].append(src.name[:24])
            seen["seconds to compile here"] += times.total / 1e6

    knobs.compilation.listener = listen
    return seen


def describe_compilation() -> dict[str, Any]:
    from torch._dynamo.utils import compilation_time_metrics, counters

    times = {name: round(sum(values), 2) for name, values in compilation_time_metrics.items()}
    longest = dict(sorted(times.items(), key=lambda item: -item[1])[:40])
    kinds = {
        kind: {k: v for k, v in counters[kind].items() if v} for kind in ("stats", "frames", "aot_autograd", "inductor")
    }
    kinds["inductor"] = {k: v for k, v in kinds["inductor"].items() if "cache" in k or "bypass" in k}
    return {"torch's phases": {name: seconds for name, seconds in longest.items() if seconds >= 0.1}, **kinds}


if __name__ == "__main__":
    main()
