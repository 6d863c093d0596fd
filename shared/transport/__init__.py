"""Channels, servers, framing, checksums and credits. gRPC, nothing of models."""
