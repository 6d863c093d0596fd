"""Prints the table of `docs/recovery.md`."""

from edge_agent.coordinator.table import markdown

if __name__ == "__main__":
    print(markdown(), end="")
