"""Asks a trainer's gRPC health service, for container engines and probes: `python -m shared.transport.rpc.health HOST:PORT`.

Ends with 0 when the trainer serves. Imports as little as it can, because an engine asks every few seconds.
"""

import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_SECONDS = 4.0
_OPTIONS = [("grpc.enable_http_proxy", 0)]  # the server is on this machine


def serving(address: str) -> bool:
    """Ask the server at an address whether it serves."""
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(0 if serving(sys.argv[1]) else 1)
