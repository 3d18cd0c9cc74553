"""How every plot of a weight matrix is drawn: which weights are blank, and the colours of the others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The rule of the paper's figure 6: weights below either are blank.
SMALLEST, SMALLEST_SHARE = 0.1, 0.05
RULE = f"Blank weights are below {SMALLEST} in size, or below {SMALLEST_SHARE:.0%} of the largest in their row."

# Light to dark if all weights are positive, else blue through white to red.
SEQUENTIAL = ((247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107))
DIVERGING = ((5, 48, 97), (67, 147, 195), (247, 247, 247), (214, 96, 77), (103, 0, 31))

Matrix = Sequence[Sequence[float]]


def shown(matrix: Matrix, mask: bool = True) -> list[list[float]]:
    """The weights, NaN where they are blank: zero (not connected) or, with `mask`, small by the paper's rule."""
    drawn = []
    for row in matrix:
        largest = max(map(abs, row), default=0.0)
        least = max(SMALLEST, SMALLEST_SHARE * largest) if mask else 0.0
        drawn.append([math.nan if value == 0 or abs(value) < least else value for value in row])
    return drawn


@dataclass(frozen=True)
class Colours:
    """From -largest to largest on the diverging scale, from 0 to largest on the sequential one."""

    largest: float
    diverging: bool

    @classmethod
    def of(cls, matrix: Matrix) -> "Colours":
        values = [value for row in matrix for value in row if not math.isnan(value)]
        return cls(max(map(abs, values), default=1.0) or 1.0, any(value < 0 for value in values))

    @property
    def lowest(self) -> float:
        return -self.largest if self.diverging else 0.0

    @property
    def stops(self) -> tuple[tuple[int, int, int], ...]:
        return DIVERGING if self.diverging else SEQUENTIAL

    def rgb(self, value: float) -> tuple[int, ...]:
        place = (value - self.lowest) / (self.largest - self.lowest)
        place = min(max(place, 0.0), 1.0) if math.isfinite(place) else 0.0
        position = place * (len(self.stops) - 1)
        low = min(int(position), len(self.stops) - 2)
        pairs = zip(self.stops[low], self.stops[low + 1], strict=True)
        return tuple(round(a + (b - a) * (position - low)) for a, b in pairs)

    def hex(self, value: float) -> str:
        return "#{:02x}{:02x}{:02x}".format(*self.rgb(value))
