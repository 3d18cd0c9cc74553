"""What the demo's model is compared with: a 6-layer post-norm Transformer, as wide, trained for the same time.

Its speed is measured on the machine at hand. Its BLEU comes from stored runs of several lengths, at the number of
updates it would make in the demo's time; `deepnmt demo --with-baseline` trains it instead.
"""

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECIPES = {"cpu": "demo-baseline", "cuda": "demo-gpu-baseline"}
STORED = Path(__file__).parent / "baseline.json"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """BLEU after so many updates; `points` are the stored runs it was read off, none if it was trained here."""

    bleu: float
    steps: int
    signature: str
    points: tuple[tuple[int, float], ...] = ()
    machine: str = "this machine"

    def __str__(self) -> str:
        figure = f"6-layer post-norm Transformer in the same time: BLEU {self.bleu:.1f}"
        if not self.points:
            return f"{figure} ({self.steps:,} updates, trained here)"
        runs = " and ".join(f"{steps:,}" for steps, _ in self.points)
        return (
            f"{figure} ({self.steps:,} updates fit here, by its speed on this machine; "
            f"BLEU interpolated between stored runs of {runs} updates, {self.machine})"
        )


def stored_baseline(target: str, precision: str, steps: int) -> Baseline | None:
    """Read off the stored runs; None where there are none for this language, precision or number of updates."""
    if not STORED.is_file():
        return None
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    curve = stored["bleu"].get(target, {}).get(precision, [])
    for (fewer, low), (more, high) in itertools.pairwise(curve):
        if fewer <= steps <= more:
            share = math.log(steps / fewer) / math.log(more / fewer)
            return Baseline(
                bleu=low + share * (high - low),
                steps=steps,
                signature=stored["signature"],
                points=((fewer, low), (more, high)),
                machine=stored["machine"],
            )
    return None
