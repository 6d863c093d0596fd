"""The classifier in two halves, divided by hand."""

import torch
from net import make_net
from torch import nn
from transformers.masking_utils import create_bidirectional_mask

RATE, BATCH = 5e-3, 32


def front_half():
    bert = make_net().base_model.model.bert
    bert.encoder.layer, bert.pooler = bert.encoder.layer[:2], None
    return bert


class BackHalf(nn.Module):
    def __init__(self):
        super().__init__()
        model = make_net().base_model.model
        self.config, self.layers, self.pooler = model.config, model.bert.encoder.layer[2:], model.bert.pooler
        self.classifier = model.classifier

    def forward(self, features, mask):
        seen = create_bidirectional_mask(self.config, inputs_embeds=features, attention_mask=mask)
        for layer in self.layers:
            features = layer(features, seen)
        return self.classifier(self.pooler(features))


def recipe(half, steps):
    optimizer = torch.optim.AdamW(half.parameters(), lr=RATE)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
