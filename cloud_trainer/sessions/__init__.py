"""The sessions that a trainer holds: opened, attached, computed, kept and freed."""
