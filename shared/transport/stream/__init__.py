"""One stream of tensors: messages, chunks, credits, and what is learnt of the link from acks."""
