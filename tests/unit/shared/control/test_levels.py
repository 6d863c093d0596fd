"""The log level of a running process: it is set in words of the contract, and the call returns the earlier one."""

import pytest

from shared.control.answers import level_now, set_level
from shared.telemetry.logs import configure_logs
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import control_pb2 as pb


def test_a_log_level_is_set_and_the_one_before_is_told():
    configure_logs("info")
    assert level_now() == pb.LOG_LEVEL_INFO
    assert set_level(pb.LOG_LEVEL_ERROR) == pb.LOG_LEVEL_INFO
    assert set_level(pb.LOG_LEVEL_INFO) == pb.LOG_LEVEL_ERROR
    for none in (pb.LOG_LEVEL_UNSPECIFIED, 99):
        with pytest.raises(StatusError, match="the level must be one of LOG_LEVEL_DEBUG"):
            set_level(none)
    assert level_now() == pb.LOG_LEVEL_INFO
