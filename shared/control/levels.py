"""Log levels as the contract has them."""

import grpc

from shared.telemetry.logs import LEVELS, log_level, set_log_level
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.control_pb2 import LogLevel

_LEVELS = {LogLevel.Value(f"LOG_LEVEL_{name.upper()}"): name for name in LEVELS}


def level_now() -> LogLevel.ValueType:
    """What is logged."""
    return LogLevel.Value(f"LOG_LEVEL_{log_level().upper()}")


def set_level(level: LogLevel.ValueType) -> LogLevel.ValueType:
    """Log this from now on; returns what was logged before. Raises StatusError for no level."""
    if level not in _LEVELS:
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT, f"the level must be one of {', '.join(LogLevel.keys()[1:])}"
        )
    previous = level_now()
    set_log_level(_LEVELS[level])
    return previous
