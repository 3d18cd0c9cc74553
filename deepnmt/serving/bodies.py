"""The body of a request as a table of fields: JSON or a form, with limits on its size, fields and time.

Parsing takes linear time; large bodies are parsed in a thread.
"""

import asyncio
import json
import re
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.serving.service import Service, off_loop

FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
MAX_EXCESS = 16  # a body up to this many times too long is read to its end, so that the client receives the refusal
MAX_FIELDS = 100
MAX_PART_HEADER = 4_096  # bytes
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_NAME = re.compile(
    rb'^content-disposition:[^\r\n]*?;[ \t]*name=(?:"([^"\r\n]*)"|([^\s;"]+))', re.IGNORECASE | re.MULTILINE
)
# Group 1 matches valid escapes; the rest are unpaired surrogates, which UTF-8 cannot encode.
_ESCAPES = re.compile(
    r"(\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


async def read_fields(request: Request, service: Service) -> dict[str, Any]:
    """The fields of the query and of the body; those of the body win."""
    limits = service.limits
    try:
        async with asyncio.timeout(limits.upload_timeout):
            body = await _read(request, service)
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {limits.upload_timeout:g} seconds") from None
    except ClientDisconnect:
        raise RefusedError(400, "the body did not arrive in full") from None
    content_type, encoding = (request.headers.get(f"content-{name}", "") for name in ("type", "encoding"))
    if encoding not in ("", "identity"):
        raise RefusedError(415, "the body must not be compressed (content-encoding)")
    fields = {**request.query_params, **await off_loop(len(body), _parsed, body, content_type, limits)}
    return {name: value for name, value in fields.items() if value is not None}  # as if they had not been sent


async def _read(request: Request, service: Service) -> bytes:
    body, size, limit = bytearray(), 0, service.limits.max_body_bytes
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                service.receive(len(chunk))
                body += chunk
            elif size > limit * MAX_EXCESS:
                break
    finally:
        service.received_bytes -= len(body)
    if size > limit:
        raise RefusedError(413, f"the body is longer than {limit:,} bytes")
    return bytes(body)


def _parsed(body: bytes, content_type: str, limits: Limits) -> dict[str, Any]:
    kind = content_type.partition(";")[0].strip().lower()
    max_values = limits.max_texts + MAX_FIELDS
    try:
        if kind == FORM and not body.lstrip().startswith(b"{"):  # curl -d announces a form whatever it sends
            if body.count(b"&") >= max_values:
                raise _too_many()
            fields = _gathered(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
        elif kind == MULTIPART:
            fields = _multipart(body, content_type, max_values)
        elif kind in ("", "application/json", "text/plain", FORM) or kind.endswith("+json"):
            fields = _json(body)
        else:
            raise RefusedError(415, f"the body must be application/json, {FORM} or {MULTIPART}")
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    if len(fields) > MAX_FIELDS:
        raise _too_many()
    return fields


def _json(body: bytes) -> dict[str, Any]:
    text = body.decode(json.detect_encoding(body))
    try:
        fields = json.loads(_ESCAPES.sub(lambda match: match[1] or r"\ufffd", text) if r"\u" in text else text)
    except json.JSONDecodeError as error:
        raise RefusedError(400, f"the body is not JSON: line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise RefusedError(400, "the body is nested too deeply") from None
    except ValueError:
        raise RefusedError(400, "the body has a number with too many digits") from None
    if not isinstance(fields, dict):
        raise RefusedError(422, 'the body must be a JSON object such as {"text": "Hello!"}')
    return fields


def _multipart(body: bytes, content_type: str, max_values: int) -> dict[str, Any]:
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise RefusedError(400, f"{MULTIPART} needs a boundary of at most 200 characters")
    delimiter = b"\r\n--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    _, *parts = (b"\r\n" + body).split(delimiter, max_values + 1)
    pairs: list[tuple[str, str]] = []
    for part in parts:
        if part.startswith(b"--"):
            break
        if len(pairs) == max_values:
            raise _too_many()
        header, found, content = part.partition(b"\r\n\r\n")
        if len(header) > MAX_PART_HEADER:
            raise RefusedError(400, f"the header of a part is longer than {MAX_PART_HEADER:,} bytes")
        if found and (name := _NAME.search(header)):
            pairs.append(((name[1] or name[2] or b"").decode(), content.decode()))
    return _gathered(pairs)


def _gathered(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """A repeated field becomes a list."""
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _too_many() -> RefusedError:
    return RefusedError(413, f"the body has too many fields: at most {MAX_FIELDS} names, and one value for each text")
