import random
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

WEIGHTS = Path("base/model.safetensors")


def language_model():
    model = GPT2LMHeadModel(GPT2Config.from_pretrained("base"))
    if WEIGHTS.exists():
        model.load_state_dict(load_file(WEIGHTS), strict=False)  # the file leaves out the head, which is tied
    adapters = LoraConfig(r=8, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    return get_peft_model(model, adapters)


class Notes:
    """Lines of a logbook, in bytes; the label of each byte is the next one."""

    def __init__(self, seed, count):
        chance = random.Random(seed)
        self.lines = [
            f"{chance.randrange(24):02}:{chance.randrange(60):02} pump {chance.randrange(9)} is "
            f"{chance.choice(['running', 'waiting', 'off'])}, {chance.randrange(20, 90)} degrees"
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        line = torch.tensor(list(self.lines[index].ljust(36).encode()))
        return {"input_ids": line[:-1]}, line[1:]
