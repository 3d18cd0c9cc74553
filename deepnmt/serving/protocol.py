"""HTTP connections with limits: on their number, the time a request takes to arrive, and how slowly a client reads."""

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from deepnmt.serving.limits import Limits

logger = logging.getLogger("deepnmt.serving")
MAX_HEADER_BYTES = 16_384
MIN_READ_BYTES = 100_000  # a client that reads less within `Limits.timeout` while an answer waits is disconnected
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\nconnection: close\r\n"
    b'content-length: 53\r\n\r\n{"error":"too many open connections; try again soon"}'
)


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with the limits that it lacks: there an idle connection may stay open for ever."""

    bounds: Limits
    _arrival: asyncio.TimerHandle | None = None  # runs while no request is being served
    _reading: asyncio.TimerHandle | None = None  # runs while the client reads too slowly

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.bounds.max_connections:
            transport.write(FULL)
            transport.close()
            return
        self._arrival = self.loop.call_later(self.bounds.upload_timeout, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.ERROR or self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("_arrival")
        elif self._arrival is None:
            self._arrival = self.loop.call_later(self.bounds.upload_timeout, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_arrival")
        self._stop("_reading")
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("_reading")

    def _give_up(self) -> None:
        """No whole request has arrived."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def _watch_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.bounds.timeout, self._check_reader, unread)

    def _check_reader(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() > unread - MIN_READ_BYTES:
            logger.info("disconnected a client that did not read its answer for %g seconds", self.bounds.timeout)
            self.transport.abort()  # not close(), which waits for the client
        else:
            self._watch_reader()

    def _stop(self, name: str) -> None:
        if (timer := getattr(self, name)) is not None:
            timer.cancel()
            setattr(self, name, None)


def bounded_protocol(limits: Limits) -> type[BoundedProtocol]:
    """uvicorn constructs the protocol itself, so the limits belong to the class."""
    return type("BoundedProtocol", (BoundedProtocol,), {"bounds": limits})
