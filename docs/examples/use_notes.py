import torch
from safetensors.torch import load_file

from notes import language_model

model = language_model().eval()
model.load_state_dict(load_file("run/notes/adapters.safetensors"), strict=False)
line = torch.tensor([list(b"07:30 pump 4 ")])
while line.shape[1] < 35:
    line = torch.cat([line, model(input_ids=line).logits[:, -1:].argmax(-1)], 1)
print(bytes(line[0].tolist()).decode())
