"""The classifier and the texts, the same file in every program."""

import csv

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

SIZES = {"padding": "max_length", "truncation": True, "max_length": 64, "return_tensors": "pt"}


def make_net():
    torch.manual_seed(1)
    base = AutoModelForSequenceClassification.from_pretrained("base")
    net = get_peft_model(base, LoraConfig(r=8, target_modules=["query", "value"]))
    net.base_model.model.classifier.requires_grad_(True)
    return net


class Texts:
    def __init__(self, file):
        with open(file, newline="") as lines:
            rows = list(csv.DictReader(lines))
        self.tokens = AutoTokenizer.from_pretrained("base")([row["text"] for row in rows], **SIZES)
        self.labels = [int(row["label"]) for row in rows]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {name: self.tokens[name][index] for name in ("input_ids", "attention_mask")}, self.labels[index]
