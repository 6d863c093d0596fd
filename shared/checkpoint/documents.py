"""Small JSON documents that carry their own checksum: a reader believes one whole or not at all."""

import json
from typing import Any

import xxhash


def seal(document: dict[str, Any]) -> bytes:
    """The document and its checksum, as the bytes that are stored."""
    body = json.dumps(document, sort_keys=True)
    return json.dumps({"document": body, "xxh3_128": xxhash.xxh3_128_hexdigest(body.encode())}).encode()


def unseal(data: bytes) -> dict[str, Any] | None:
    """The document that `seal` was given; None for bytes that `seal` did not make."""
    try:
        outer = json.loads(data)
        body = outer["document"]
        document = json.loads(body)
        whole = xxhash.xxh3_128_hexdigest(body.encode()) == outer["xxh3_128"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return document if whole and isinstance(document, dict) else None
