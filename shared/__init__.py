"""The common ground of both sides: models, codecs, planning, transport, telemetry."""

import os

# Here, because gRPC looks at it once, when it is imported. Its sockets then wake a process when the rest of a frame is there,
# and not for every packet or two (docs/architecture.md, "Threads").
os.environ.setdefault("GRPC_EXPERIMENTS", "tcp_frame_size_tuning,tcp_rcv_lowat")
