"""Small JSON documents that carry their own checksum, so that one is believed whole or not at all."""

import json
from typing import Any

import xxhash


def seal(document: dict[str, Any]) -> bytes:
    """The document as bytes to be kept."""
    body = json.dumps(document, sort_keys=True)
    return json.dumps({"document": body, "xxh3_128": xxhash.xxh3_128_hexdigest(body.encode())}).encode()


def unseal(data: bytes) -> dict[str, Any] | None:
    """The document again; None for anything that `seal` did not make."""
    try:
        outer = json.loads(data)
        body = outer["document"]
        document = json.loads(body)
        whole = xxhash.xxh3_128_hexdigest(body.encode()) == outer["xxh3_128"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return document if whole and isinstance(document, dict) else None
