"""Generation speed against the peers, in one run on one machine: same shapes, random weights, forced length.

    python benchmarks/generate.py --device cpu --json results/generate-cpu.json --peer-python peers/bin/python
    python benchmarks/generate.py --device cuda --json results/generate-gpu.json

Peers are transformers (Marian) and CTranslate2 (CPU). They may live in an environment of their own, whose interpreter
`--peer-python` names: this file then runs there with `--peer NAME`, which needs no deepnmt. A peer that is not
installed is left out with a notice. On a CPU everything runs on `--threads` cores in the best way each engine knows:
one batch on all cores, and one batch on each core.

Ours also computes the probability of the end, one position after the last token. CTranslate2 and Marian omit it at a
forced length, so they generate one token more: every engine computes the same number of positions.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPE = {"dim": 512, "ffn_dim": 2048, "num_heads": 8, "vocab_size": 32_000}
DEPTHS = {"encoder": (6, 16, 20, 25, 30), "decoder": (4, 6, 8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--precisions", nargs="+", help="of ours (CPU: fp32 bf16 int8; GPU: fp32 bf16 fp16)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1, help="all of it so often; the best of each counts")
    parser.add_argument("--no-depths", action="store_true", help="without speed against depth")
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer", choices=list(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(PEERS[arguments.peer](arguments)))
        return
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "command": " ".join(sys.argv)}
    speeds: dict[str, float] = {}
    for _ in range(arguments.rounds):
        # Ours and theirs in turn, so that a change in the machine's mood meets both.
        for found in (ours(arguments), *(run_peer(peer, arguments) for peer in arguments.peers)):
            for name, value in found.items():
                speeds[name] = max(value, speeds.get(name, 0.0))
    results["tokens_per_second"] = speeds
    for name, value in sorted(speeds.items(), key=lambda item: (item[0].split(", ")[-1], -item[1])):
        print(f"{name:<60}{value:>10,.0f} tokens/s", flush=True)
    if not arguments.no_depths:
        results["depths"] = depths(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def ours(arguments: argparse.Namespace) -> dict[str, float]:
    from deepnmt.devices import tune_for_translation

    tune_for_translation()  # as the commands do
    import torch

    from deepnmt.analysis.config import Workload
    from deepnmt.analysis.generation_speed import measure_generation
    from deepnmt.config import load_recipe

    torch.set_num_threads(arguments.threads)
    sizes = [f"model.{side}_vocab_size={SHAPE['vocab_size']}" for side in ("source", "target")]
    on_cpu = arguments.device == "cpu"
    ways = {1, arguments.threads} if on_cpu else {1}
    found = {}
    for beam in arguments.beams:
        for preset in ("en-de-pre-base", "en-de-pre-dlcl-30l"):
            config = load_recipe(preset, sizes).model
            for precision in arguments.precisions or (("fp32", "bf16", "int8") if on_cpu else ("fp32", "bf16", "fp16")):
                for workers in sorted(ways):
                    workload = Workload(
                        batch=arguments.batch,
                        beam=beam,
                        length=arguments.length,
                        workers=workers,
                        repeats=arguments.repeats,
                    )
                    speed = measure_generation(config, workload, device=arguments.device, precision=precision)
                    name = f"deepnmt {preset} {precision}, {_way(workers, arguments)}, beam {beam}"
                    found[name] = speed.tokens_per_second
                    print(f"{name:<60}{speed.tokens_per_second:>10,.0f} tokens/s", file=sys.stderr, flush=True)
    return found


def _way(workers: int, arguments: argparse.Namespace) -> str:
    if arguments.device != "cpu":
        return "one batch"
    return f"{workers} x {arguments.threads // workers} threads"


def depths(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Speed against depth: figure 5 and table 5 of the paper."""
    from dataclasses import asdict

    from deepnmt.analysis.config import Workload
    from deepnmt.analysis.generation_speed import depth_variants, measure_generation
    from deepnmt.config import load_recipe

    config = load_recipe("en-de-pre-dlcl-30l").model
    workload = Workload(batch=arguments.batch, length=arguments.length, beam=4, repeats=arguments.repeats)
    precision = "int8" if arguments.device == "cpu" else "bf16"
    rows = []
    for variant in depth_variants(config, DEPTHS["encoder"], DEPTHS["decoder"]):
        speed = measure_generation(variant, workload, device=arguments.device, precision=precision)
        rows.append({"precision": precision, **asdict(speed)})
        print(f"{speed.encoder_layers:>3}L-{speed.decoder_layers}L {speed.tokens_per_second:>10,.0f} tokens/s")
    return rows


def run_peer(peer: str, arguments: argparse.Namespace) -> dict[str, float]:
    """A peer in a process of its own, so that no two libraries share threads or memory."""
    command = [arguments.peer_python, __file__, "--peer", peer, "--device", arguments.device]
    for name in ("batch", "length", "threads", "repeats"):
        command += [f"--{name}", str(getattr(arguments, name))]
    command += ["--beams", *map(str, arguments.beams)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"notice: {peer} is left out: {reason}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _best(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def marian(arguments: argparse.Namespace) -> dict[str, float]:
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    on_gpu = arguments.device != "cpu"
    found = {}
    for layers in (6, 30) if on_gpu else (6,):
        config = MarianConfig(
            vocab_size=SHAPE["vocab_size"], decoder_vocab_size=SHAPE["vocab_size"], d_model=SHAPE["dim"],
            encoder_layers=layers, decoder_layers=6, encoder_ffn_dim=SHAPE["ffn_dim"], decoder_ffn_dim=SHAPE["ffn_dim"],
            encoder_attention_heads=SHAPE["num_heads"], decoder_attention_heads=SHAPE["num_heads"],
            activation_function="relu", pad_token_id=1, eos_token_id=2, forced_eos_token_id=2, decoder_start_token_id=2,
            max_position_embeddings=1024,
        )  # fmt: skip
        for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
            model = MarianMTModel(config).to(arguments.device, dtype).eval()
            source = torch.randint(4, SHAPE["vocab_size"], (arguments.batch, arguments.length), device=arguments.device)
            for beam in arguments.beams:

                def run(model: Any = model, source: Any = source, beam: int = beam) -> None:
                    with torch.inference_mode():
                        length = arguments.length + 1  # with the end
                        model.generate(source, num_beams=beam, min_new_tokens=length, max_new_tokens=length)
                    if on_gpu:
                        torch.cuda.synchronize()

                seconds = _best(run, arguments.repeats)
                found[f"transformers Marian {layers}L {name}, {_way(1, arguments)}, beam {beam}"] = (
                    arguments.batch * arguments.length / seconds
                )
    return found


def ctranslate2(arguments: argparse.Namespace) -> dict[str, float]:
    import ctranslate2 as engine
    import numpy as np

    if arguments.device != "cpu":
        sys.exit("measured on the CPU only")
    random = np.random.default_rng(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        _save_random_model(folder)
        for kind in ("float32", "int8"):
            for workers in sorted({1, arguments.threads}):
                translator = engine.Translator(
                    folder,
                    compute_type=kind,
                    inter_threads=workers,
                    intra_threads=arguments.threads // workers,
                )
                words = random.integers(0, SHAPE["vocab_size"] - 4, (workers * arguments.batch, arguments.length - 1))
                sources = [[f"w{word}" for word in line] for line in words]
                for beam in arguments.beams:
                    options = {
                        "beam_size": beam,
                        "max_batch_size": arguments.batch,
                        "min_decoding_length": arguments.length + 1,  # with the end
                        "max_decoding_length": arguments.length + 1,
                    }

                    def run(translator: Any = translator, sources: Any = sources, options: Any = options) -> None:
                        translator.translate_batch(sources, **options)

                    tokens = len(sources) * arguments.length
                    name = f"CTranslate2 6L {kind}, {_way(workers, arguments)}, beam {beam}"
                    found[name] = tokens / _best(run, arguments.repeats)
    return found


def _save_random_model(folder: str) -> None:
    """Our 6L-6L base model, pre-norm, in CTranslate2's own terms."""
    import numpy as np
    from ctranslate2.specs import TransformerSpec

    dim, ffn_dim, size = SHAPE["dim"], SHAPE["ffn_dim"], SHAPE["vocab_size"]
    random = np.random.default_rng(1)

    def table(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def linear(layer: Any, inputs: int, outputs: int) -> None:
        layer.weight, layer.bias = table(outputs, inputs), np.zeros(outputs, np.float32)

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(dim, np.float32), np.zeros(dim, np.float32)

    spec = TransformerSpec.from_config((6, 6), SHAPE["num_heads"], pre_norm=True)
    for stack in (spec.encoder, spec.decoder):
        embeddings = stack.embeddings if isinstance(stack.embeddings, list) else [stack.embeddings]
        for embedding in embeddings:
            embedding.weight = table(size, dim)
        stack.scale_embeddings = True
        norm(stack.layer_norm)
        for layer in stack.layer:
            attentions = [(layer.self_attention, (3 * dim, dim))]
            if hasattr(layer, "attention"):
                attentions.append((layer.attention, (dim, 2 * dim, dim)))
            for attention, outputs in attentions:
                norm(attention.layer_norm)
                for part, width in zip(attention.linear, outputs, strict=True):
                    linear(part, dim, width)
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, dim, ffn_dim)
            linear(layer.ffn.linear_1, ffn_dim, dim)
    linear(spec.decoder.projection, dim, size)
    vocabulary = ["<blank>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(size - 4))]
    spec.config.add_source_eos = True
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.optimize(quantization="float32")
    spec.save(folder)


PEERS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {"ctranslate2": ctranslate2, "marian": marian}

if __name__ == "__main__":
    main()
