"""TLS of both sides, and secrets in files that may change."""
