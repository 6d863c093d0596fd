"""Choice of the side that trains the copies of a calibration, as a command is told."""

from enum import StrEnum


class CalibrateOn(StrEnum):
    """The side that trains the copies."""

    DEVICE = "device"
    TRAINER = "trainer"
