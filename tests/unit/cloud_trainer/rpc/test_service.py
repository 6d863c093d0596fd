"""Closing of sessions, whichever call asks for it."""

import grpc
import pytest
import torch
from prometheus_client import CollectorRegistry

from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.service import TrainerService
from cloud_trainer.sessions.stored_sessions import SessionOpening
from shared.checkpoint import LocalFiles, SessionFolder
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.running import trainer_config
from tests.support.wire import FENCE, open_request


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_session_that_is_being_rebuilt_keeps_its_files(tmp_path, resumable):
    service = TrainerService(
        trainer_config(f"checkpoints.location={tmp_path}"), torch.device("cpu"), TrainerMetrics(CollectorRegistry())
    )
    try:
        session_id = service.sessions.reserve()  # An edge that attaches causes this.
        files = LocalFiles(tmp_path).folder("cloud-trainer")
        SessionFolder(files.folder(session_id), 1).write(SessionOpening(open_request(), 0, "").document)
        request = pb.CloseSessionRequest(session_id=session_id, fence=FENCE, resumable=resumable)
        with pytest.raises(StatusError) as refused:
            await service.close_session(request, None)
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
        assert files.folders() == [session_id]
        service.sessions.release(session_id)
        await service.close_session(request, None)
        assert files.folders() == ([session_id] if resumable else [])
    finally:
        await service.close(10)
