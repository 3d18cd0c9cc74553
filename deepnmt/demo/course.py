"""The steps of the demo. A step is skipped if its result exists, so an interrupted demo resumes."""

import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepnmt.config import load_recipe
from deepnmt.demo.plan import MAX_PROCESSES, MINUTES, Plan, launch, make_plan, seconds_per_step
from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.files import read_json, write_json
from deepnmt.progress import say

RECIPES = {"cpu": "demo", "cuda": "demo-gpu"}
BASELINES = {"cpu": "demo-baseline", "cuda": "demo-gpu-baseline"}
# The weight of the target text as its own source, from which a small model learns to copy unknown names
# (Currey et al. 2017, https://aclanthology.org/W17-4715/).
COPIED = 0.3


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    target: str = "de"
    out: Path = Path("demo")
    minutes: float | None = None  # without downloads; None: depends on the device
    recipe: str | None = None  # instead of the demo's own
    with_baseline: bool = False
    device: str | None = None
    vocab_size: int = 8000
    max_processes: int = MAX_PROCESSES

    def __post_init__(self) -> None:
        if self.target == "en":
            raise InputError(
                "--target en: the demo translates from English; choose another target language, such as de"
            )
        if self.minutes is not None and not 0 < self.minutes < 10_000:
            raise InputError(f"--minutes {self.minutes:g} must be above 0 and below 10,000")


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A 6-layer post-norm Transformer with Adam, as wide as the demo's model, trained here for the same time.

    A figure from another machine would compare machines, so without `--with-baseline` there is none.
    """

    bleu: float
    steps: int
    signature: str

    def __str__(self) -> str:
        trained = f"{self.steps:,} updates, trained here for the same time"
        return f"6-layer post-norm Transformer with Adam: BLEU {self.bleu:.1f} ({trained})"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The results of the demo."""

    target: str
    folder: Path
    scores: dict[str, dict[str, Any]]  # by name: value, signature, confidence interval
    num_lines: int
    baseline: Baseline | None

    @property
    def corpus(self) -> Path:
        return self.folder / f"corpus-{self.target}"

    @property
    def run(self) -> Path:
        return self.folder / f"run-{self.target}"

    @property
    def model(self) -> Path:
        return self.run / "model"


def run_demo(settings: DemoSettings) -> Demo:
    """Download, prepare, train within the time, translate the test set and score it."""
    device = "cuda" if choose_device(settings.device).startswith("cuda") else "cpu"
    target, out = settings.target, settings.out
    corpus, data = out / f"corpus-{target}", out / f"data-{target}"
    recipe = settings.recipe or RECIPES[device]
    load_recipe(recipe)  # refused before anything is written
    _check_plan(out / f"plan-{target}.json", settings, device)

    if not (corpus / "corpus.json").is_file():
        from deepnmt.data.catalogues import make_corpus

        _show("corpus", "homeassistant", "--languages", "en", target, "--out", corpus)
        make_corpus("homeassistant", ("en", target), corpus)
    if not (data / "dataset.json").is_file():
        _prepare(corpus, data, target, settings.vocab_size)

    def model(recipe: str, minutes: float, name: str) -> tuple[Plan, dict[str, Any]]:
        """Train and score a model, unless that is done."""
        path, run = out / f"plan-{name}.json", out / f"run-{name}"
        if not path.is_file():
            make_plan(recipe, device, minutes, data, out / "trial", settings.max_processes).write(path)
        return _train(path, data, run), _evaluate(run, corpus, target, device)

    plan, found = model(recipe, settings.minutes or MINUTES[device], target)
    baseline = None
    if settings.with_baseline or (out / f"plan-{target}-baseline.json").is_file():
        beside, scored = model(BASELINES[device], plan.minutes, f"{target}-baseline")
        bleu = scored["scores"]["bleu"]
        baseline = Baseline(bleu=bleu["value"], steps=beside.steps, signature=bleu["signature"])
    return Demo(target=target, folder=out, scores=found["scores"], num_lines=found["num_lines"], baseline=baseline)


def _check_plan(path: Path, settings: DemoSettings, device: str) -> None:
    """Raise if the settings differ from those of the demo in the folder."""
    if not path.is_file():
        return
    plan = Plan.read(path)
    for name, wanted in (("minutes", settings.minutes), ("recipe", settings.recipe), ("device", settings.device)):
        wanted, there = device if name == "device" and wanted else wanted, getattr(plan, name)
        if wanted is not None and wanted != there:
            raise InputError(
                f"{settings.out} holds a demo with --{name} {there}, not {wanted}; choose another --out, or remove "
                f"{path} and {settings.out / f'run-{settings.target}'}"
            )


def _prepare(corpus: Path, data: Path, target: str, vocab_size: int) -> None:
    from deepnmt.api.prepare import prepare

    options: dict[str, Any] = {}
    for split, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_")):
        options[f"{prefix}source"] = corpus / f"{split}.en"
        options[f"{prefix}target"] = corpus / f"{split}.{target}"
    options |= {"source_lang": "en", "target_lang": target, "vocab_size": vocab_size, "min_frequency": 2, "out": data}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    copied = corpus / f"train.{target}"
    _show("prepare", *words, "--joint", "--corpus", "copied", copied, copied, "--weight", f"copied={COPIED}",
          "--keep", "identical")  # fmt: skip
    prepare(
        **options, joint=True, corpora={"copied": (copied, copied)}, weights={"copied": COPIED}, keep=("identical",)
    )


def _train(path: Path, data: Path, run: Path) -> Plan:
    """Train in two parts; the speed of the first determines the length of the second."""
    plan = Plan.read(path)
    if _trained_steps(run) == plan.steps:
        return plan
    started = time.monotonic()
    compiling = ", after compiling the GPU's kernels" if plan.device == "cuda" else ""
    say(f"training {plan.recipe} for about {duration(plan.seconds)}{compiling}")
    if plan.first:
        _train_to(plan.first, 1, plan, data, run)
        shutil.rmtree(run / "model")
        plan = plan.with_rest(seconds_per_step(run))
        plan.write(path)
        say(f"{plan.steps - plan.decay:,} updates done; {plan.decay:,} more in about {duration(plan.seconds)}")
    _train_to(plan.steps, plan.decay, plan, data, run)
    say(f"trained in {duration(time.monotonic() - started)}")
    return plan


def _train_to(steps: int, decay: int, plan: Plan, data: Path, run: Path) -> None:
    words = [plan.recipe, *plan.overrides(steps, decay), "--data", data, "--out", run, "--device", plan.device]
    status = launch(plan.processes, [*words, "--resume"])
    if status or _trained_steps(run) != steps:
        raise SystemExit(status or 1)  # training failed or was stopped, and has printed why


def _trained_steps(run: Path) -> int:
    """The steps of a finished run with a model, else 0."""
    from deepnmt.training.checkpoint import step_of

    if not (run / "model" / "meta.json").is_file():
        return 0
    return step_of(run / read_json(run / "last.json")["checkpoint"])


def _evaluate(run: Path, corpus: Path, target: str, device: str) -> dict[str, Any]:
    """The scores on the test set, stored with the run."""
    path = run / "scores.json"
    if not path.is_file():
        from deepnmt.api.evaluate import evaluate

        source, reference, output = corpus / "test.en", corpus / f"test.{target}", run / f"test.{target}"
        _show("evaluate", run / "model", "--source", source, "--reference", reference, "--output", output,
              "--metrics", "bleu", "chrf", "--confidence")  # fmt: skip
        found = evaluate(
            run / "model", source, reference, output=output, device=device, metrics=["bleu", "chrf"], confidence=True
        )
        write_json(path, {"num_lines": found.scores.num_lines, "scores": found.scores.as_dict()})
    return read_json(path)


def _show(command: str, *words: object) -> None:
    """Print the command for the next step, as a user would type it."""
    print(f"\n$ deepnmt {command} {shlex.join(map(str, words))}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
