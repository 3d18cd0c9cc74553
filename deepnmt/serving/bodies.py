"""What arrives as a body, as a table of fields: JSON or a form, of bounded size, in bounded time."""

import asyncio
import json
from email import message_from_bytes
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from deepnmt.serving.limits import Limits, RefusedError

FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
DRAINED = 16  # a body this many times too long is still read to its end, so that the client hears why it is refused


async def read_fields(request: Request, limits: Limits) -> dict[str, Any]:
    """The fields of the query and of the body; those of the body win."""
    try:
        async with asyncio.timeout(limits.upload_timeout):
            body = await _read(request, limits.max_body_bytes)
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {limits.upload_timeout:g} seconds") from None
    except ClientDisconnect:
        raise RefusedError(400, "the body did not arrive in full") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == FORM and not body.lstrip().startswith(b"{"):  # curl -d says it sends a form whatever it sends
        fields = _form(body)
    elif kind == MULTIPART:
        fields = _multipart(body, request.headers["content-type"])
    elif kind in ("", "application/json", "text/plain", FORM) or kind.endswith("+json"):
        fields = _json(body)
    else:
        raise RefusedError(415, f"a body must be application/json, {FORM} or {MULTIPART}")
    return whole_characters({**dict(request.query_params), **fields})


async def _read(request: Request, most: int) -> bytes:
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= most:
            body += chunk
        elif size > most * DRAINED:
            break
    if size > most:
        raise RefusedError(413, f"the body is longer than {most:,} bytes")
    return bytes(body)


def _json(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise RefusedError(400, f"the body is not JSON: line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise RefusedError(
            400, "the body is not JSON that can be read: a number too long or brackets too deep"
        ) from None
    if not isinstance(fields, dict):
        raise RefusedError(422, 'the body must be a JSON object such as {"text": "Hello!"}')
    return fields


def _form(body: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=10_000)
    except ValueError:
        raise RefusedError(413, "the form has too many fields") from None
    return _gathered(pairs)


def _multipart(body: bytes, content_type: str) -> dict[str, Any]:
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    try:
        message = message_from_bytes(head + body, policy=HTTP)
        pairs = []
        for part in message.iter_parts() if message.is_multipart() else ():
            name = part.get_param("name", header="content-disposition")
            content = part.get_payload(decode=True)
            if isinstance(name, str) and isinstance(content, bytes):
                pairs.append((name, content.decode("utf-8", "replace")))
    except (ValueError, LookupError, AttributeError, IndexError, TypeError, RecursionError):  # not a form at all
        raise RefusedError(400, "the form cannot be read") from None
    return _gathered(pairs)


def _gathered(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """A field that is given several times is a list."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return fields


def whole_characters(content: Any) -> Any:
    """The same with half characters (lone surrogates, which JSON can spell and UTF-8 cannot) made U+FFFD."""
    if isinstance(content, str):
        return content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(content, list):
        return [whole_characters(item) for item in content]
    if isinstance(content, dict):
        return {whole_characters(key): whole_characters(value) for key, value in content.items()}
    return content
