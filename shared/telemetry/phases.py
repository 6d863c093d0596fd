"""The names of the four phases of a step."""

PHASES = ("edge", "uplink", "cloud", "downlink")
"""Their seconds are T1 to T4 (paper 000, 4.1), measured without encoding and decoding."""
