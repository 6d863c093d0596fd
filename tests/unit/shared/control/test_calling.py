"""Calls of a control command that a process does not answer: each is an error with a code that says why."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from shared.control.calling import calling
from shared.errors import RefusedError, UnreachableError
from shared.wire.isthmus.v1 import control_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["EdgeControlService"]


@contextmanager
def served(answer):
    """A process's server and where it is controlled."""
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(answer, response_serializer=pb.PauseResponse.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, {"Pause": handler}),))
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield server, target
    finally:
        server.stop(0).wait()


def call(target):
    with calling(target, "agent", SERVICE) as service:
        service.call("Pause")


def test_a_process_that_ends_before_it_answers_has_refused():
    begun, stopped = threading.Event(), threading.Event()

    def never(_request, _context):
        begun.set()
        stopped.wait(60)
        return pb.PauseResponse()

    with served(never) as (server, target), ThreadPoolExecutor(1) as beside:
        asked = beside.submit(call, target)
        begun.wait(60)
        ending = server.stop(0)
        with pytest.raises(RefusedError, match=f"the agent at {target} ended before it answered"):
            asked.result(60)
        stopped.set()
        ending.wait(60)


def test_a_process_that_says_what_cannot_be_reached_is_believed():
    def away(_request, context):
        context.abort(grpc.StatusCode.UNAVAILABLE, "a link is down")

    with served(away) as (_, target), pytest.raises(UnreachableError, match="a link is down"):
        call(target)


def test_where_no_process_listens_that_is_said():
    with served(None) as (_, target):
        pass
    with pytest.raises(UnreachableError, match="no agent is controlled at"):
        call(target)
