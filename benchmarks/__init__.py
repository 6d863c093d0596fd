"""Measurements of our claims."""

import shared  # noqa: F401 - before gRPC, so that what is measured beside ours has a gRPC that was told the same
