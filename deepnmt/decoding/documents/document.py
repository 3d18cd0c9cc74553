"""What every format is read into: parts that are copied, and parts that have sentences to translate."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from deepnmt.decoding.translator import Hypothesis


class Part(ABC):
    """Law: with every sentence translated as itself, a part is written as it was read, to the last byte."""

    @property
    @abstractmethod
    def sentences(self) -> list[tuple[str, bool]]:
        """The sentences to translate, and whether alignments are needed to put tags back."""

    @abstractmethod
    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        """The part with the next hypotheses, which are those of its sentences."""


class Document(Part):
    def __init__(self, parts: Iterable[str | Part]) -> None:
        self.parts = list(parts)

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return [sentence for part in self.parts if isinstance(part, Part) for sentence in part.sentences]

    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        return "".join(part if isinstance(part, str) else part.written(hypotheses) for part in self.parts)
