"""A small encoder that has read such texts, saved as base/: it stands for one that a user downloads."""

import csv

import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, ByT5Tokenizer

STEPS, LENGTH = 200, 64

torch.manual_seed(0)
tokenizer = ByT5Tokenizer()
config = BertConfig(
    vocab_size=len(tokenizer),
    max_position_embeddings=LENGTH,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=128,
    hidden_dropout_prob=0.0,  # each system draws its random numbers otherwise
    attention_probs_dropout_prob=0.0,
    num_labels=2,
)
with open("train.csv", newline="") as lines:
    texts = [row["text"] for row in csv.DictReader(lines)]
tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
filler = BertForMaskedLM(config)
optimizer = torch.optim.AdamW(filler.parameters(), lr=2e-3)
for _ in range(STEPS):
    chosen = torch.randint(len(texts), (32,))
    ids, mask = tokens["input_ids"][chosen], tokens["attention_mask"][chosen]
    left_out = (torch.rand(ids.shape) < 0.15) & mask.bool()
    labels = ids.masked_fill(~left_out, -100)
    filler(ids.masked_fill(left_out, tokenizer.unk_token_id), mask, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
classifier = BertForSequenceClassification(config)
classifier.bert.load_state_dict(filler.bert.state_dict(), strict=False)  # the pooler begins with what was drawn
classifier.save_pretrained("base")
tokenizer.save_pretrained("base")
