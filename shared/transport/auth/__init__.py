"""Who calls and who answers: TLS, tokens, and how often somebody may call."""
