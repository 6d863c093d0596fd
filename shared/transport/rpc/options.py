"""gRPC's options, each beside its reason: the one place where channels and servers are tuned."""

from typing import Any

Options = list[tuple[str, Any]]

MESSAGE_OVERHEAD_BYTES = 1024 * 1024
"""Room in a message beside its payload: headers, a model's name and arguments, reports with the metrics of every worker."""

FRAME_BYTES = 1 << 20
"""The longest HTTP/2 frame that is taken, for the default of 16 KiB."""
FIRST_RECONNECT_SECONDS, LONGEST_RECONNECT_SECONDS = 0.1, 0.4
"""Between two attempts of a channel to connect; gRPC waits up to a fifth longer. A call fails at once meanwhile, so this comes
on top of our own wait between calls (`shared/client/retry.py`); together they must stay below a second."""


def _common(max_message_bytes: int, keepalive_seconds: float) -> Options:
    return [
        # Both directions: a peer that sends more is cut off before the message is held in memory.
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # A dead link is noticed by an unanswered ping, also while no message is due.
        ("grpc.keepalive_time_ms", int(keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(keepalive_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A chunk of a tensor is a frame or two, each of which is read as a whole (`shared/__init__.py`).
        ("grpc.http2.max_frame_size", FRAME_BYTES),
        # Payloads are packed already, and gzip runs at tens of MB/s.
        ("grpc.default_compression_algorithm", 0),
    ]


def channel_options(max_message_bytes: int, keepalive_seconds: float) -> Options:
    """Options of the edge's channels."""
    return [
        *_common(max_message_bytes, keepalive_seconds),
        # Channels with the same target and options share one connection unless each has its own pool; the control
        # channel must not stand behind the features.
        ("grpc.use_local_subchannel_pool", 1),
        # After a lost link: try again soon, and never wait long once the link is back.
        ("grpc.initial_reconnect_backoff_ms", int(FIRST_RECONNECT_SECONDS * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(LONGEST_RECONNECT_SECONDS * 1000)),
        # How long one attempt may take, which is several round trips; a refusal ends it sooner.
        ("grpc.min_reconnect_backoff_ms", 5000),
        # We retry by ourselves, above the stream.
        ("grpc.enable_retries", 0),
    ]


def server_options(max_message_bytes: int, keepalive_seconds: float) -> Options:
    """Options of the trainer's server."""
    return [
        *_common(max_message_bytes, keepalive_seconds),
        # A connection that does not get as far as HTTP/2 is closed; the default of two minutes lets strangers hold many.
        ("grpc.server_handshake_timeout_ms", 20_000),
        # Of one connection. An edge needs a stream of tensors and a few calls beside it; more of them wait at its end.
        ("grpc.max_concurrent_streams", 128),
        # Two processes on one port would each get half of the edges; the second must fail instead.
        ("grpc.so_reuseport", 0),
        # Edges may ping as often as their own keepalive says.
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
