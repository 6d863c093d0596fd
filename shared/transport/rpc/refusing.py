"""Every error of a method as a status and one sentence."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import structlog

from shared.errors import IsthmusError, one_line
from shared.transport.rpc.status import StatusError, abort, status_of
from shared.transport.stream.packets import undamaged

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


def refusing(
    method: Callable[[Any, Context], Awaitable[T]], side: str, failed: Callable[[grpc.StatusCode], object]
) -> Callable[[Any, Context], Awaitable[T]]:
    """`method` with its errors as statuses; a defect of ours on this `side` keeps its traceback in the log.

    failed: told of every error's status.
    """

    @functools.wraps(method)
    async def call(request: Any, context: Context) -> T:
        try:
            return await method(undamaged(request), context)
        except IsthmusError as error:
            if isinstance(error, StatusError) and error.wanted:
                _log.info("looked at by a doctor", method=method.__name__)
                return await abort(context, error)
            failure, code = error, status_of(error)
            _log.warning("call refused", method=method.__name__, code=code.name, reason=one_line(str(error)))
        except grpc.aio.BaseError as lost:  # gRPC's own: the client has gone, or the server has stopped
            _log.warning("connection lost", method=method.__name__, reason=type(lost).__name__)
            raise
        except Exception as defect:
            code = grpc.StatusCode.INTERNAL
            failure = StatusError(code, f"a defect in {side} ({type(defect).__name__}: {defect})")
            _log.exception("call failed", method=method.__name__)
        failed(code)
        return await abort(context, failure)

    return call
