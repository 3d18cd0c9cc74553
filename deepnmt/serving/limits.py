"""What the server accepts and how it batches; over a limit a request is refused with a sentence that names it."""

from dataclasses import dataclass


class RefusedError(Exception):
    """A request that is not served: the HTTP status and one sentence for the client."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes count characters (Unicode code points) of the texts, times are seconds."""

    max_body_bytes: int = 4_000_000  # above: 413
    max_characters: int = 100_000  # of all texts of a request; above: 413
    max_texts: int = 2_000  # of a request; above: 413
    max_beam: int = 16  # above: 422
    max_requests: int = 512  # at work at once; above: 429
    max_waiting_characters: int = 1_000_000  # of all requests at work; above: 429
    timeout: float = 60.0  # for an answer, or for the next sentence of a stream; above: 503
    upload_timeout: float = 30.0  # for the body of a request to arrive; above: 408
    max_batch_sentences: int = 64
    max_batch_characters: int = 12_000  # with padding
    batch_wait: float = 0.005  # how long the first sentence of a batch waits for others
    cache_sentences: int = 4_096  # translations remembered for each model; 0: none

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in ("batch_wait", "cache_sentences") else 1
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")


class Gate:
    """Counts what is at work and refuses what is too much; once closed it lets nothing in and waits for the rest."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.characters = 0
        self.closed = False

    def enter(self, characters: int) -> None:
        limits = self.limits
        if self.closed:
            raise RefusedError(503, "the server is shutting down and takes no new requests", retry_after=5)
        if self.requests >= limits.max_requests:
            raise RefusedError(
                429, f"{self.requests} requests are being served already; try again shortly", retry_after=1
            )
        # A request that fits alone is never refused by an idle server.
        if self.requests and self.characters + characters > limits.max_waiting_characters:
            raise RefusedError(
                429, f"{self.characters:,} characters are waiting already; try again shortly", retry_after=1
            )
        self.requests += 1
        self.characters += characters

    def leave(self, characters: int) -> None:
        self.requests -= 1
        self.characters -= characters
