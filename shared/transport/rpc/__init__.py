"""gRPC as both sides use it: options, statuses, health, reflection."""
