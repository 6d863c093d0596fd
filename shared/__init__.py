"""What both sides stand on: models, codecs, planning, transport, telemetry."""
