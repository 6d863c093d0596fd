"""Who trains the copies of a calibration, as a command is told."""

from enum import StrEnum


class CalibrateOn(StrEnum):
    """Who trains what is asked for."""

    DEVICE = "device"
    TRAINER = "trainer"
