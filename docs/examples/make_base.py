import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
sizes = {"vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 4, "n_head": 4}
plain = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
base = GPT2LMHeadModel(GPT2Config(**sizes, **plain))
optimizer = torch.optim.AdamW(base.parameters(), lr=3e-3)
for _ in range(300):
    tokens = torch.stack([text[at : at + 36] for at in torch.randint(len(text) - 36, (16,))])
    base(tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
base.save_pretrained("base")
