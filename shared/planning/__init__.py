"""What was measured on a pair of devices, as pure data. No torch, no gRPC, no clock."""
