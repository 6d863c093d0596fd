"""One stream of tensors: messages, chunks, credits, and the link's rate learnt from acks."""
