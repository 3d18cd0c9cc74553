"""A server from its socket to its end: on a signal it finishes the work at hand and refuses the rest."""

import asyncio
import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from deepnmt.errors import InputError
from deepnmt.serving.limits import Gate
from deepnmt.serving.protocol import MAX_HEADER_BYTES, bounded_protocol

logger = logging.getLogger("deepnmt.serving")


class GracefulServer(uvicorn.Server):
    """On the first signal the gate closes: new requests get 503, and the server ends when the work at hand is done,

    or after `grace` seconds, or on a second signal.
    """

    def __init__(self, config: uvicorn.Config, gate: Gate, grace: float) -> None:
        super().__init__(config)
        self.gate, self.grace = gate, grace
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None or self.gate.closed:
            self.should_exit = self.force_exit = True
            return
        self.gate.closed = True
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = asyncio.ensure_future(self._drained())

    async def _drained(self) -> None:
        logger.info("shutting down: finishing %d requests", self.gate.requests)
        try:
            async with asyncio.timeout(self.grace):
                while self.gate.requests:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            logger.warning("%d requests were not finished after %g seconds", self.gate.requests, self.grace)
        self.should_exit = True


def open_socket(host: str, port: int) -> socket.socket:
    """Bound before anything is loaded, so that a port in use is reported at once."""
    if not 0 <= port <= 65_535:
        raise InputError(f"cannot listen on port {port}: choose a --port from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _unusable(host, port, error) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise _unusable(host, port, error) from error
    return listening


def _unusable(host: str, port: int, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot listen on {host} port {port}: {reason} (choose another --host or --port)")


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: FastAPI, grace: float = 30.0, access_log: bool = False) -> GracefulServer:
    service = app.state.service
    config = uvicorn.Config(
        app,
        http=bounded_protocol(service.limits),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        log_level="info" if access_log else "warning",
        access_log=access_log,
        timeout_keep_alive=max(int(service.limits.upload_timeout), 1),
        timeout_graceful_shutdown=max(int(grace), 1),
        server_header=False,
    )
    return GracefulServer(config, service.gate, grace)
