"""Limits on requests, and the settings of batching. A refusal is one sentence that names the limit."""

from dataclasses import dataclass

from deepnmt.settings import check_bounds


class RefusedError(Exception):
    """A refused request: the HTTP status and one sentence for the client."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes count characters (Unicode code points) of the texts, times are seconds."""

    max_characters: int = 100_000  # of all texts of a request; above: 413
    max_texts: int = 2_000  # of a request; above: 413
    max_beam: int = 16  # above: 422
    max_terms: int = 100  # of a request; above: 413
    max_term_characters: int = 200  # of a term or its translation; above: 413
    max_term_subwords: int = 32  # of the translation of a term (above: 422), and of all terms of a sentence
    max_answer_bytes: int = 16_000_000  # of an answer that is not streamed; above: 413
    max_requests: int = 512  # in progress at once; above: 429
    max_waiting_characters: int = 1_000_000  # of all requests in progress; n-best lists and alignments cost extra
    max_connections: int = 1_000  # open at once; above: 503
    timeout: float = 60.0  # for an answer, or for the next sentence of a stream; above: 503
    upload_timeout: float = 30.0  # for a request to arrive; above: 408
    max_batch_sentences: int = 64
    max_batch_characters: int = 12_000  # with padding; n-best lists and alignments cost extra
    batch_wait: float = 0.005  # how long the first sentence of a batch waits for others
    cache_megabytes: float = 64.0  # translations kept for each model; 0: none

    def __post_init__(self) -> None:
        may_be_zero = {"batch_wait", "cache_megabytes"}
        check_bounds(self, " ".join(may_be_zero), least=0)
        check_bounds(self, " ".join(vars(self).keys() - may_be_zero), least=1)

    @property
    def max_body_bytes(self) -> int:
        """Above: 413. A character is at most 12 bytes, in JSON or in a form."""
        return 100_000 + 16 * self.max_characters

    @property
    def max_received_bytes(self) -> int:
        """Of all bodies that are arriving; above: 429."""
        return 64 * self.max_body_bytes
