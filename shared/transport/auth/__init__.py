"""Authentication of callers and servers: TLS, tokens, tickets, and limits on the rate of calls."""
