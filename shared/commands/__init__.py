"""The shared parts of both command lines: exit codes, common options, and messages to systemd."""
