"""Dialling a worker: credentials, a channel, calls with deadlines, retries, and the training stream."""
