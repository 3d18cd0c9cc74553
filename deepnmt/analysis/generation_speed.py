"""Generation speed, with random weights and forced lengths, so that every engine does the same work."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepnmt.analysis.config import Workload
from deepnmt.analysis.training_speed import wait_for
from deepnmt.data.forks import CAN_FORK, ForkedWorkers
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.continuous import ContinuousSearches, can_fuse
from deepnmt.decoding.prepared import PreparedModel, prepare
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.sampling import Paths
from deepnmt.decoding.search import Beams, search
from deepnmt.model.config import ModelConfig
from deepnmt.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class GenerationSpeed:
    encoder_layers: int
    decoder_layers: int
    tokens_per_second: float  # of the best hypotheses, end symbol not counted
    encoder_share: float  # of the time
    milliseconds_per_step: float
    memory_gib: float  # on a GPU


def measure_generation(config: ModelConfig, workload: Workload, *, device: str, precision: str) -> GenerationSpeed:
    torch.manual_seed(1)
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    prepared = prepare(Transformer(config).to(device).eval(), precision)
    source = torch.randint(UNK + 1, config.source_vocab_size, (workload.batch, workload.length), device=device)
    source[:, -1] = EOS
    run, encode = _runners(prepared, source, workload)
    seconds, encoder_seconds = (_best_of(task, workload, device) for task in (run, encode))
    tokens = workload.workers * workload.batch * workload.length
    return GenerationSpeed(
        encoder_layers=config.encoder.num_layers,
        decoder_layers=config.decoder.num_layers,
        tokens_per_second=tokens / seconds,
        encoder_share=encoder_seconds / seconds,
        milliseconds_per_step=1000 * (seconds - encoder_seconds) / (workload.length + 1),
        memory_gib=torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
    )


def _runners(
    prepared: PreparedModel, source: Tensor, workload: Workload
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Functions that translate the batch and that only encode it."""
    config = SearchConfig(beam=workload.beam)
    fused = source.is_cuda and workload.fused and can_fuse(prepared.model) and ContinuousSearches.suits(config)
    rules = Rules(  # every translation has the length of the workload
        max_lengths=torch.full((workload.batch,), workload.length, device="cpu" if fused else source.device),
        eos=EOS,
        banned=(BOS, PAD, UNK),
        min_length=workload.length,
    )
    if fused:
        searches, sources = ContinuousSearches(prepared), source.tolist()

        def encode_slots() -> None:
            (slots,) = searches.recorded.values()
            slots.encode(sources)

        return lambda: searches.search_all(sources, rules, config), encode_slots

    def run() -> object:
        state = prepared.start(source, workload.beam)
        growing = Paths(rules) if workload.beam == 1 else Beams(rules, config)
        # No hypothesis ends before the last step, and checking would make the host wait.
        return search(prepared.step, state, growing, shrink_every=workload.length + 2)

    return run, lambda: prepared.start(source, workload.beam)


def _best_of(run: Callable[[], object], workload: Workload, device: str) -> float:
    """Seconds for all workers to run once, after a warm-up; the best of several, because machines are noisy."""
    threads = torch.get_num_threads()
    times = []
    if workload.workers > 1:
        torch.set_num_threads(1)
    with _side_by_side(run, workload.workers) as run_all:
        for _ in range(workload.repeats + 1):
            wait_for(device)
            started = time.perf_counter()
            run_all()
            wait_for(device)
            times.append(time.perf_counter() - started)
    torch.set_num_threads(threads)
    return min(times[1:])


@contextmanager
def _side_by_side(run: Callable[[], object], workers: int) -> Iterator[Callable[[], object]]:
    """A function that runs `run` in each of the workers, as `Translator` does: in forked processes or in threads."""
    if workers == 1:
        yield run
    elif CAN_FORK:

        def work(_: int) -> None:
            run()

        forks = ForkedWorkers(workers, work)
        try:
            yield lambda: list(forks.as_done(range(workers)))
        finally:
            forks.end()
    else:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield lambda: list(pool.map(lambda _: run(), range(workers)))


def depth_variants(
    config: ModelConfig, encoder_layers: Sequence[int], decoder_layers: Sequence[int]
) -> list[ModelConfig]:
    """The model itself, or variants of it with each of these encoder depths and decoder depths."""
    variants = [replace(config, encoder=replace(config.encoder, num_layers=depth)) for depth in encoder_layers]
    variants += [replace(config, decoder=replace(config.decoder, num_layers=depth)) for depth in decoder_layers]
    return variants or [config]
