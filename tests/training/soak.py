"""Killed at random instants and resumed, a run ends as if it had never been: to the last bit, whatever is switched on.

`make soak` runs this file until it has killed 200 times; test_soak.py kills every case of the table once.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

import torch
from processes import Process
from ranks import free_port
from small import curves

from deepnmt.cli import main
from deepnmt.training.engine import EagerEngine, Objective
from deepnmt.training.memory import sizes_of

RECIPE = """
[model]
source_vocab_size = 10
target_vocab_size = 10
share_embeddings = true
encoder = { num_layers = 2, dim = 16, ffn_dim = 32, num_heads = 2, connection = "dlcl" }
decoder = { num_layers = 1, dim = 16, ffn_dim = 32, num_heads = 2 }
[batching]
tokens_per_batch = 64
[training]
max_steps = 14
tokens_per_update = 64
lr = 5e-3
warmup_steps = 4
log_every = 1
validate_every = 4
save_every = 3
keep_epochs = 1
validation_lines = 2
tensorboard = false
"""


@dataclass(frozen=True)
class Case:
    settings: tuple[str, ...] = ()
    ranks: int = 1
    fault: str = "none"
    is_tuning: bool = False  # of the plain case's model


CASES = {
    "plain": Case(),
    "bpe-dropout": Case(("batching.bpe_dropout=0.2",)),
    "mixture": Case(("batching.weights.first=0.3", "batching.weights.second=2.0", "batching.temperature=2.0")),
    "packed": Case(("batching.layout=packed", "batching.tokens_per_batch=128")),
    "packed-bpe-dropout": Case(("batching.layout=packed", "batching.tokens_per_batch=128", "batching.bpe_dropout=0.1")),
    "accumulation": Case(("training.tokens_per_update=192", "batching.tokens_per_batch=48")),
    "ema": Case(("training.ema_decay=0.9", "training.clip_norm=0.5")),
    "muon": Case(("training.optimizer=muon", "training.weight_decay=0.1", "training.precision=bf16")),
    "relative": Case(("model.positions=relative", "model.attention_dropout=0.1", "batching.layout=packed")),
    "skipping": Case(("model.encoder.layer_dropout=0.3", "model.decoder.sublayer_dropout=0.5")),
    "r-drop": Case(("training.r_drop=5.0", "batching.layout=packed", "batching.tokens_per_batch=128")),
    "sampled-softmax": Case(("training.sampled_softmax=50",)),
    "fp16": Case(("training.precision=fp16",)),
    "epochs": Case(("training.save_every=100", "training.validate_every=5", "training.keep_last=1")),
    "unseen-end": Case(("training.validate_every=100", "training.save_every=7", "training.keep_best=0")),
    "rollbacks": Case(("training.rollbacks=3", "training.rollback_factor=0.5"), fault="diverges"),
    "growing": Case(
        ("training.grow=[1,2]", "training.grow_at=[6]", "training.ema_decay=0.9", "training.rollbacks=3"),
        fault="diverges",
    ),
    "frozen": Case(('training.freeze=["embeddings", "encoder.0"]', "training.ema_decay=0.9"), is_tuning=True),
    "lora": Case(("training.lora.rank=4", "training.rollbacks=3"), fault="diverges", is_tuning=True),
    "splits": Case(("batching.tokens_per_batch=96", "training.tokens_per_update=192"), fault="shrinks"),
    "packed-splits": Case(("batching.layout=packed", "batching.tokens_per_batch=256"), fault="shrinks"),
    "early-stopping": Case(
        ("training.patience=2", "training.validate_every=2", "training.best_by=loss", "training.lr=1")
    ),
    "two-ranks": Case(("training.tokens_per_update=128", "training.max_steps=10"), ranks=2),
    "two-ranks-bpe-dropout": Case(
        ("training.tokens_per_update=128", "training.max_steps=10", "batching.bpe_dropout=0.2"), ranks=2
    ),
    "sharded": Case(
        ("training.tokens_per_update=128", "training.max_steps=8", "training.parallel=fsdp", "training.keep_last=1"),
        ranks=2,
    ),
}


def train(words: list[str]) -> int:
    """`deepnmt` with a fault; runs in a process of its own."""
    torch.set_num_threads(1)
    fault, *words = words
    if fault == "diverges":
        EagerEngine.accumulate = diverging(EagerEngine.accumulate)
    elif fault == "shrinks":
        EagerEngine.accumulate = shrinking(EagerEngine.accumulate)
        Objective.forward = tight(Objective.forward)
    return main(words)


def diverging(accumulate):
    """The loss of update 6 is not a number, and after the first rollback that of update 9, and then that of 11."""

    def accumulated(self, update, scale, noise):
        sums = accumulate(self, update, scale, noise)
        _, step, rollbacks = noise.key
        return sums * float("nan") if (rollbacks, step) in ((0, 6), (1, 9), (2, 11)) else sums

    return accumulated


ROOM = [0]


def shrinking(accumulate):
    """Something else takes more and more of the device's memory."""

    def accumulated(self, update, scale, noise):
        ROOM[0] = 400 - 30 * noise.key[1]
        return accumulate(self, update, scale, noise)

    return accumulated


def tight(forward):
    def tried(self, batch):
        if torch.is_grad_enabled() and sum(sizes_of(batch)) > max(ROOM[0], 60):
            raise torch.OutOfMemoryError("too large")
        return forward(self, batch)

    return tried


class Setup:
    """A folder with a dataset of two corpora, and the uninterrupted run of every case that was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tiny.toml").write_text(RECIPE)
        texts = {name: self._write(name, pairs) for name, pairs in (("first", 80), ("second", 40), ("valid", 8))}
        words = ["prepare", *(word for name in ("first", "second") for word in ("--corpus", name, *texts[name]))]
        words += [
            "--valid-source",
            texts["valid"][0],
            "--valid-target",
            texts["valid"][1],
            "--out",
            str(folder / "data"),
        ]
        words += ["--source-lang", "en", "--target-lang", "de", "--vocab-size", "330", "--min-frequency", "1"]
        assert main(words) == 0
        self.seconds: dict[str, float] = {}
        with Process(main, ["train", "--help"]) as process:  # the server of processes imports what all of them need
            process.wait()

    def _write(self, name: str, pairs: int) -> list[str]:
        chosen = random.Random(name)
        syllables = ["ba", "ke", "lo", "mi", "nu", "sa", "te"]
        lines = [
            ["".join(chosen.choices(syllables, k=chosen.randint(1, 3))) for _ in range(chosen.randint(2, 7))]
            for _ in range(pairs)
        ]
        texts = {"en": lines, "de": [line[::-1] for line in lines]}
        for language, side in texts.items():
            (self.folder / f"{name}.{language}").write_text("".join(" ".join(line) + "\n" for line in side))
        return [str(self.folder / f"{name}.{language}") for language in texts]

    def start(self, name: str, run: str, opened: ExitStack) -> list[Process]:
        """The processes of a case, one for each rank."""
        case = CASES[name]
        words = [case.fault, "train", str(self.folder / "tiny.toml"), *case.settings]
        words += ["--data", str(self.folder / "data"), "--out", str(self.folder / run), "--resume", "--device", "cpu"]
        words += ["--from", str(self.uninterrupted("plain") / "model")] if case.is_tuning else []
        world = {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} if case.ranks > 1 else {} for rank in range(case.ranks)]
        return [opened.enter_context(Process(train, words, **world, **rank)) for rank in ranks]

    def finish(self, name: str, run: str) -> None:
        with ExitStack() as opened:
            for process in self.start(name, run, opened):
                assert process.wait() == 0, f"{name}: {process.output}"

    def uninterrupted(self, name: str) -> Path:
        """The run of a case to compare with, made when it is first asked for."""
        if name not in self.seconds:
            started = time.monotonic()
            self.finish(name, name)
            self.seconds[name] = time.monotonic() - started
        return self.folder / name

    def kill(self, name: str, run: str, chosen: random.Random) -> bool:
        """Start or resume a run and kill it (all its ranks, or one) after a while; False if it had already ended."""
        with ExitStack() as opened:
            processes = self.start(name, run, opened)
            time.sleep(chosen.uniform(0.02, 0.9) * self.seconds[name])
            victims = processes if chosen.random() < 0.5 else [chosen.choice(processes)]
            is_alive = any(process.status is None for process in victims)
            for process in victims:
                process.kill()
            deadline = time.monotonic() + 3  # for ranks that have lost one: they end, or still wait for it to join
            while any(process.status is None for process in processes) and time.monotonic() < deadline:
                time.sleep(0.02)
            return is_alive

    def kill_and_compare(self, name: str, kills: int, seed: object) -> int:
        """Kill a run this often, finish it, and compare; returns how often it was still alive to be killed."""
        wanted = self.uninterrupted(name)
        chosen = random.Random(f"{name} {seed}")
        run = f"{name}-killed"
        try:
            hit = sum(self.kill(name, run, chosen) for _ in range(kills))
            self.finish(name, run)
            difference = compare(wanted, self.folder / run)
            assert not difference, f"{name}, killed {hit} times (seed {seed}): {difference}"
        finally:
            shutil.rmtree(self.folder / run, ignore_errors=True)
        return hit


def compare(wanted: Path, found: Path) -> str | None:
    """What differs between two finished runs, in words; times are not compared."""
    theirs, ours = contents(wanted), contents(found)
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            state = "missing" if name not in ours else "unexpected" if name not in theirs else "different"
            return f"{name} is {state}"
    for one, other in zip(curves(wanted), curves(found), strict=False):
        if one != other:
            return f"the log has {other} instead of {one}"
    counts = len(curves(wanted)), len(curves(found))
    return None if counts[0] == counts[1] else f"the log has {counts[1]} lines instead of {counts[0]}"


def contents(run: Path) -> dict[str, bytes]:
    """Every file but the log."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != "log.jsonl")
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def soak(kills: int, seed: int, names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="deepnmt-soak-") as folder:
        place, done, rounds, started = Setup(Path(folder)), 0, 0, time.monotonic()
        while done < kills:
            for name in names:
                done += place.kill_and_compare(name, min(3, kills - done), f"{seed} {rounds}")
                print(f"{done:>4} of {kills} kill points, {time.monotonic() - started:.0f} s: {name}", flush=True)
                if done >= kills:
                    break
            rounds += 1
        print(f"{done} kill points in {len(names)} cases: every run ended as the uninterrupted one, to the last bit")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="default: 200")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="default: random")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    given = parser.parse_args()
    soak(given.kills, given.seed, given.cases or list(CASES))
