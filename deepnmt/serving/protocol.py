"""HTTP connections with limits: on their number, the time a request takes to arrive, and how slowly a client reads."""

import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from deepnmt.serving.limits import Limits

logger = logging.getLogger("deepnmt.serving")
MAX_HEADER_BYTES = 16_384
MIN_READ_BYTES = 100_000  # a client that reads less within `Limits.timeout` while an answer waits is disconnected
TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\nconnection: close\r\n"
    b'content-length: 53\r\n\r\n{"error":"too many open connections; try again soon"}'
)


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with the limits that it lacks: there an idle connection may stay open for ever."""

    bounds: Limits
    _idle_since: float
    _unread: tuple[int, float] | None = None  # bytes of an answer that the client has to read, and when

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if len(self.connections) > self.bounds.max_connections:
            transport.write(TOO_MANY_CONNECTIONS)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.ERROR or self.transport.is_closing():
            return
        if self.timeout_keep_alive_task is not None:  # the first bytes of the next request
            self._idle_since = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def check(self) -> None:
        """Called regularly: disconnects a client that sends no whole request or does not read its answer."""
        now = self.loop.time()
        if self.flow.write_paused:
            unread = self.transport.get_write_buffer_size()
            if self._unread is None or unread <= self._unread[0] - MIN_READ_BYTES:
                self._unread = unread, now
            elif now - self._unread[1] > self.bounds.timeout:
                logger.info("disconnected a client that did not read its answer for %g seconds", self.bounds.timeout)
                self.transport.abort()  # not close(), which waits for the client
            return
        self._unread = None
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and now - self._idle_since > self.bounds.upload_timeout:
            self.transport.abort()


def bounded_protocol(limits: Limits) -> type[BoundedProtocol]:
    """uvicorn constructs the protocol itself, so the limits belong to the class."""
    return type("BoundedProtocol", (BoundedProtocol,), {"bounds": limits})
