"""The curves of a run: log.jsonl, and TensorBoard and W&B where wanted; no gaps, no duplicates after a restart."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.files import write_text
from deepnmt.heatmap import Colours

LOG = "log.jsonl"
NOT_CURVES = {"kind", "step", "layers", "samples", "signatures"}


class Sink:
    """Receives the lines of the log. A line has `kind`, `step`, and the values of that kind."""

    lines = 0  # of log.jsonl; other sinks count none

    def write(self, line: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def tick(self, step: int) -> None:
        """A step is done; called at every step."""

    def rewind(self, step: int, lines: int) -> None:
        """Forget what came after a checkpoint of this step, saved when the log had this many lines."""

    def picture(self, name: str, matrix: Tensor, step: int) -> None:
        """Show a matrix of weights."""

    def close(self) -> None:
        pass


class Curves(list[Sink]):
    """All sinks of a run; only the main rank has any. log.jsonl is the first: others read it when they rewind."""

    def write(self, kind: str, step: int, **values: Any) -> None:
        for sink in self:
            sink.write({"kind": kind, "step": step, **values})

    def rewind(self, step: int, lines: int) -> None:
        for sink in self:
            sink.rewind(step, lines)

    def close(self) -> None:
        for sink in self:
            sink.close()


class JsonLines(Sink):
    """One JSON object per line. Opening it at a checkpoint drops later lines, and a line that was cut short."""

    def __init__(self, folder: Path, lines: int) -> None:
        self.path = folder / LOG
        self._open(lines, kept=())

    def rewind(self, step: int, lines: int) -> None:
        """Earlier rollbacks to the same checkpoint stay on record."""
        self.file.close()
        self._open(lines, kept=("rollback",))

    def _open(self, lines: int, kept: tuple[str, ...]) -> None:
        found = read_log(self.path.parent)
        found = found[:lines] + [line for line in found[lines:] if line["kind"] in kept]
        write_text(self.path, "".join(map(_dump, found)))
        self.lines = len(found)
        self.file = self.path.open("a", encoding="utf-8", newline="\n")

    def write(self, line: Mapping[str, Any]) -> None:
        self.lines += 1
        self.file.write(_dump(line))
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def read_log(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The complete lines, of one kind or of all; none before there is a log.

    Only a line feed ends a line: samples may contain U+2028, where `splitlines` would split.
    """
    lines = []
    content = (folder / LOG).read_bytes() if (folder / LOG).exists() else b""
    for text in content.split(b"\n")[:-1]:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line and kind in (None, line["kind"]):
            lines.append(line)
    return lines


def seconds_of(line: Mapping[str, Any]) -> float:
    """The time that a line about training is about."""
    return line["tokens"] / (line["tokens_per_second"] or math.inf)


def _dump(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"


def _scalars(line: Mapping[str, Any]) -> dict[str, float]:
    values = {name: value for name, value in line.items() if name not in NOT_CURVES}
    return {f"{line['kind']}/{name}": value for name, value in values.items() if isinstance(value, int | float)}


class TensorBoard(Sink):
    """Scalars of every line, gradient norms per layer, samples as text, connection weights as pictures."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder = folder
        self._open(step)

    def _open(self, step: int) -> None:
        """TensorBoard forgets whole steps only: if this one is still to be validated, its lines are written again."""
        from torch.utils.tensorboard.writer import SummaryWriter

        writer: Any = SummaryWriter
        lines = [line for line in read_log(self.folder) if line["step"] == step]
        is_validated = any(line["kind"] == "validation" for line in lines)
        self.writer = writer(str(self.folder / "tensorboard"), purge_step=step + is_validated)
        for line in [] if is_validated else lines:
            self.write(line)

    def rewind(self, step: int, lines: int) -> None:
        self.writer.close()
        self._open(step)

    def write(self, line: Mapping[str, Any]) -> None:
        step = line["step"]
        for name, value in _scalars(line).items():
            self.writer.add_scalar(name, value, step)
        for layer, norm in line.get("layers", {}).items():
            self.writer.add_scalar(f"gradient_norm/{layer}", norm, step)
        for source, hypothesis, reference in line.get("samples", []):
            self.writer.add_text("samples", f"{source}\n\n**{hypothesis}**\n\n{reference}", step)

    def picture(self, name: str, matrix: Tensor, step: int) -> None:
        rows = matrix.tolist()
        colours = Colours.of(rows)
        pixels = torch.tensor([[colours.rgb(value) for value in row] for row in rows], dtype=torch.uint8)
        self.writer.add_image(name, pixels.repeat_interleave(8, 0).repeat_interleave(8, 1), step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


def require_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise InputError("training.wandb_project is set, but wandb is not installed: pip install wandb") from error
    return wandb


class WeightsAndBiases(Sink):
    """The same scalars on wandb.ai, under one id per run folder, so that a restart continues the same curves.

    W&B keeps its points after a rollback; the curve continues once the step has passed them.
    """

    def __init__(self, folder: Path, project: str, settings: Mapping[str, Any]) -> None:
        # The whole path, since folders in different places may share a name.
        digest = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest()
        self.run: Any = require_wandb().init(
            project=project,
            name=folder.name,
            id=f"{folder.name}-{digest}",
            dir=str(folder),
            resume="allow",
            config=settings,
        )

    def write(self, line: Mapping[str, Any]) -> None:
        self.run.log(_scalars(line), step=line["step"])

    def close(self) -> None:
        self.run.finish()
