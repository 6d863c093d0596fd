"""The base of both sides' control services: their addresses, their server, and the calls that the commands make."""
