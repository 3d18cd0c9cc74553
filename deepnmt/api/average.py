"""`deepnmt.average`: average checkpoints of a run into a MODEL."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from deepnmt.data.dataset import Dataset
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.translator import Translator
from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.evaluation.scores import quick_scores
from deepnmt.model.storage import build_model
from deepnmt.training.averaging import average_weights, choose_checkpoints, read_decoding, write_average
from deepnmt.training.folder import read_about


@dataclass(frozen=True)
class Average:
    """An averaged MODEL."""

    model: Path
    checkpoints: list[str]
    bleu: list[float]  # with best_on_valid: validation BLEU of the average of the last (or best) 1, 2, ... N


def average(
    run: str | Path,
    out: str | Path,
    *,
    last: int = 5,
    best: int | None = None,
    steps: Sequence[int] | None = None,
    of: Literal["epochs", "steps"] | None = None,
    best_on_valid: bool = False,
    data: str | Path | None = None,
    beam: int | None = None,
    device: str | None = "cpu",
) -> Average:
    """Average checkpoints of a RUN folder and write the MODEL folder `out`.

    last: average the last N checkpoints of the kind `of` (by default epochs, or steps if no epoch has ended).
    best: instead, the N with the best validation scores. steps: instead, those of these steps.
    best_on_valid: of the averages of the last (or best) 1 to N, keep the one with the best BLEU on the validation set
        of `data` (by default the run's), decoded with the run's settings unless `beam` is given, on `device`.
    """
    run, out = Path(run), Path(out)
    about = read_about(run)
    for name, count in {"last": last, "best": best, "beam": beam}.items():
        if count is not None and count < 1:
            raise InputError(f"{name} = {count} must be at least 1")
    if of not in (None, "epochs", "steps"):
        raise InputError(f'of = {of!r} must be "epochs" or "steps"')
    if out.exists():
        raise InputError(f"{out} already exists; choose another `out`")
    kind = None if of is None else of.removesuffix("s")
    paths = choose_checkpoints(run, last=last, best=best, steps=steps or (), kind=kind)
    bleu: list[float] = []
    meta = {}
    if best_on_valid:
        dataset = Dataset.open(Path(data or about["data"]))
        bleu = _validation_bleu(run, paths, dataset, beam, choose_device(device))
        paths = paths[len(paths) - 1 - bleu.index(max(bleu)) :]
        meta = {"valid_bleu": max(bleu)}
    write_average(run, paths, out, meta)
    return Average(out, [path.name for path in paths], bleu)


def _validation_bleu(run: Path, paths: Sequence[Path], dataset: Dataset, beam: int | None, device: str) -> list[float]:
    """BLEU of the average of the last 1, 2, ... of the checkpoints on the validation set, the mean over directions."""
    if not dataset.valid_directions:
        raise InputError(f"{dataset.folder} has no validation set, which best_on_valid needs; choose another `data`")
    tokenizers = TokenizerPair.load(run)
    settings = {**(read_decoding(run) or {}), **({} if beam is None else {"beam": beam})}
    bleu = []
    for first in reversed(range(len(paths))):
        model = build_model(paths[0], average_weights(paths[first:])).to(device)
        found = []
        for direction in dataset.valid_directions:
            translator = Translator.of(model, tokenizers).for_languages(*direction.languages)
            hypotheses = translator.translate(direction.source, **settings)
            found.append(quick_scores(hypotheses, direction.target, direction.languages[1])["bleu"].value)
        bleu.append(fmean(found))
    return bleu
