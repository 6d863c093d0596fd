"""Chains of blocks: cutting a module, running a stage, moving a block. torch, nothing of gRPC."""
