"""Threads and tasks: work beside the event loop, and threads that many share fairly."""
