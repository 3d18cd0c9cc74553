"""The server process: its socket, and a shutdown that finishes the requests in progress and refuses new ones."""

import logging
import math
import socket
import time
from contextlib import ExitStack
from types import FrameType

import uvicorn
from fastapi import FastAPI

from deepnmt.errors import InputError
from deepnmt.serving.protocol import MAX_HEADER_BYTES, BoundedProtocol, bounded_protocol
from deepnmt.serving.service import Service

logger = logging.getLogger("deepnmt.serving")


class GracefulServer(uvicorn.Server):
    """After the first signal new requests get 503; the server ends when those in progress are answered, or after
    `grace` seconds, or on a second signal."""

    def __init__(self, config: uvicorn.Config, service: Service, grace: float) -> None:
        super().__init__(config)
        self.service, self.grace = service, grace
        self._ends, self._deadline = False, math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = self.force_exit = self._ends
        self._ends = self.service.closed = True

    async def on_tick(self, counter: int) -> bool:
        for connection in list(self.server_state.connections) if counter % 5 == 0 else ():  # twice a second
            if isinstance(connection, BoundedProtocol):
                connection.check()
        if self._ends and not self.should_exit:
            if self._deadline == math.inf:
                logger.info("shutting down; requests in progress: %d", self.service.requests)
                self._deadline = time.monotonic() + self.grace
            left = self._deadline - time.monotonic()
            self.should_exit = left <= 0 or not self.service.requests
            if self.should_exit and self.service.requests:
                logger.warning("gave up after %g seconds; unfinished requests: %d", self.grace, self.service.requests)
            self.config.timeout_graceful_shutdown = max(math.ceil(left), 1)  # for answers that are still being sent
        return await super().on_tick(counter)


def open_socket(host: str, port: int) -> socket.socket:
    """Bind before loading the models, so that a port in use is reported at once."""
    if not 0 <= port <= 65_535:
        raise InputError(f"cannot listen on port {port}: choose a --port from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as unless_bound:
            listening = unless_bound.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            unless_bound.pop_all()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"cannot listen on {host} port {port}: {reason} (choose another --host or --port)"
        raise InputError(message) from error
    return listening


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: FastAPI, grace: float = 30.0, access_log: bool = False) -> GracefulServer:
    service = app.state.service
    config = uvicorn.Config(
        app,
        http=bounded_protocol(service.limits),
        ws="none",
        lifespan="off",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        log_level="info" if access_log else "error",  # a warning for each invalid request would fill the disk
        access_log=access_log,
        timeout_keep_alive=max(int(service.limits.upload_timeout), 1),
        server_header=False,
    )
    return GracefulServer(config, service, grace)
