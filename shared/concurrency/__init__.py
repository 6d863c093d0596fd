"""Threads and tasks: work beside the event loop."""
