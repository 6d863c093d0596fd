"""The other end of a connection: TLS, callers with their tokens and rates, and secrets in files that may change."""
