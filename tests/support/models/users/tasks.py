"""Users' models with data of theirs, small and drawn from a seed: tasks to train under any placement."""

import torch
from torch import Tensor, nn

from shared.model.random_state import random_state
from shared.training.recipe import OptimizerConfig
from tests.support.models.users import libraries, pictures, tables, texts
from tests.support.trained import BATCH, Batch, Task


def drawn(words: int, length: int) -> Tensor:
    return torch.randint(words, (BATCH, length))


def classes() -> Tensor:
    return torch.randint(3, (BATCH,))


def rows() -> Batch:
    kinds = torch.stack([torch.randint(each, (BATCH,)) for each in tables.KINDS], 1)
    return (kinds, torch.randn(BATCH, tables.NUMBERS)), classes()


def masks() -> Batch:
    return torch.randn(BATCH, 1, 16, 16), torch.randint(pictures.CLASSES, (BATCH, 16, 16))


def same_pictures() -> Batch:
    shown = torch.rand(BATCH, 1, 16, 16)
    return shown, shown.clone()


def boxes() -> Batch:
    box = torch.rand(BATCH, 2, 4)
    kind = torch.randint(-1, pictures.CLASSES, (BATCH, 2, 1)).float()
    return torch.randn(BATCH, 1, 16, 16), torch.cat([kind, box], 2)


def boxes_in_parts() -> Batch:
    pictures_of_boxes, labels = boxes()
    assert isinstance(labels, Tensor)
    return pictures_of_boxes, (labels[..., 0].long(), labels[..., 1:].clone())


def following(words: int, length: int = texts.LENGTH) -> Batch:
    """Tokens, and those after each."""
    tokens = drawn(words, length + 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def named(inputs: Batch) -> Batch:
    tokens, labels = inputs
    assert isinstance(tokens, Tensor)
    return {"input_ids": tokens}, labels


def padded(words: int = libraries.WORDS) -> dict[str, Tensor]:
    """Texts of several lengths, as a tokenizer gives them."""
    lengths = torch.tensor([texts.LENGTH, 5, 6, 3])
    return {
        "input_ids": drawn(words, texts.LENGTH),
        "attention_mask": (torch.arange(texts.LENGTH)[None] < lengths[:, None]).long(),
    }


def ends(tokens: dict[str, Tensor]) -> Batch:
    """Padded texts, of which the padding is not learnt."""
    labels = tokens["input_ids"].roll(-1, 1).masked_fill(tokens["attention_mask"] == 0, -100)
    return tokens, labels


def sentence_pairs() -> Batch:
    return (drawn(texts.WORDS, 7), drawn(texts.WORDS, 5)), drawn(texts.WORDS, 5)


def past() -> Batch:
    inputs = {
        "past": torch.randn(BATCH, tables.PAST, 2),
        "future_known": torch.randn(BATCH, tables.FUTURE, 3),
        "past_mask": torch.rand(BATCH, tables.PAST) > 0.2,
    }
    return inputs, torch.randn(BATCH, tables.FUTURE, 2)


def two_pictures() -> Batch:
    return (torch.randn(BATCH, 1, 16, 16), torch.randn(BATCH, 1, 16, 16)), torch.randint(2, (BATCH,)).float()


def purchases() -> Batch:
    return {"user": drawn(20, 1).squeeze(1), "item": drawn(30, 1).squeeze(1)}, torch.randint(2, (BATCH,)).float()


TOKENS, PICTURES = "token_cross_entropy", "tests.support.models.users.pictures"
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-3, clip_norm=1.0)
TASKS = {
    "table of kinds and numbers": Task(tables.Tabular, rows, optimizer=ADAMW),
    "U-Net": Task(pictures.UNet, masks),
    "autoencoder": Task(pictures.Autoencoder, same_pictures, "mse"),
    "VAE with its own loss": Task(pictures.VAE, same_pictures, f"{PICTURES}:vae_loss", optimizer=ADAMW),
    "LSTM of characters": Task(texts.CharLSTM, lambda: following(texts.WORDS), TOKENS),
    "GPT with tied weights": Task(texts.GPT, lambda: following(texts.WORDS), TOKENS, optimizer=ADAMW),
    "torch's encoder with padding": Task(texts.TransformerClassifier, lambda: (drawn(4, texts.LENGTH), classes())),
    "its layers with padding": Task(
        lambda: texts.TransformerClassifier(packs=False), lambda: (drawn(4, texts.LENGTH), classes())
    ),
    "torch's encoder and decoder": Task(texts.Translator, sentence_pairs, TOKENS),
    "BERT": Task(libraries.bert, lambda: (padded(), classes()), output="logits", optimizer=ADAMW),
    "GPT-2": Task(libraries.gpt2, lambda: named(following(libraries.WORDS)), TOKENS, "logits", ADAMW),
    "GPT-2 with padding": Task(libraries.gpt2, lambda: ends(padded()), TOKENS, "logits"),
    "GPT-2 with adapters": Task(libraries.adapted_gpt2, lambda: ends(padded()), TOKENS, "logits", ADAMW),
    "ViT": Task(libraries.vit, lambda: ({"pixel_values": torch.randn(BATCH, 1, 16, 16)}, classes()), output="logits"),
    "Llama": Task(libraries.llama, lambda: ends(padded()), TOKENS, "logits", ADAMW),
    "EfficientNet": Task(libraries.efficientnet, lambda: (torch.randn(BATCH, 3, 32, 32), classes())),
    "CNN of sounds": Task(pictures.AudioCNN, lambda: (torch.randn(BATCH, 1, 256), classes())),
    "recommender": Task(tables.Recommender, purchases, "bce_with_logits", optimizer=ADAMW),
    "forecast of a series": Task(tables.Forecaster, past, "mse"),
    "detector with three outputs": Task(pictures.Detector, boxes, f"{PICTURES}:detection_loss"),
    "detector whose labels are two": Task(pictures.Detector, boxes_in_parts, f"{PICTURES}:detection_loss_of_parts"),
    "GRU that reads and writes": Task(texts.Seq2Seq, sentence_pairs, TOKENS),
    "two pictures, one network": Task(tables.Siamese, two_pictures, "bce_with_logits"),
    "mixture of experts": Task(tables.MixtureOfExperts, lambda: (torch.randn(BATCH, tables.NUMBERS), classes())),
    "graph": Task(tables.GraphNetwork, lambda: (torch.randn(BATCH, tables.NODES, 2), classes())),
}


def any_length() -> int:
    return int(torch.randint(2, texts.LENGTH + 1, ()))


VARYING = {
    "GPT with tied weights": Task(texts.GPT, lambda: following(texts.WORDS, any_length()), TOKENS),
    "torch's encoder with padding": Task(texts.TransformerClassifier, lambda: (drawn(4, any_length()), classes())),
    "BERT": Task(libraries.bert, lambda: (cut(padded(), any_length()), classes()), output="logits", optimizer=ADAMW),
    "GPT-2 with padding": Task(libraries.gpt2, lambda: ends(cut(padded(), any_length())), TOKENS, "logits"),
    "LSTM of characters": Task(texts.CharLSTM, lambda: following(texts.WORDS, any_length()), TOKENS),
}
"""Models whose batches have lengths of their own."""


def cut(tokens: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    return {name: tensor[:, :length].contiguous() for name, tensor in tokens.items()}


def model(name: str) -> nn.Module:
    """The model of a task, as a factory makes it."""
    return TASKS[name].model()


class Samples:
    """Samples of a task, as a data set gives them."""

    def __init__(self, name: str, batches: int = 6) -> None:
        with random_state("samples"):
            self._batches = [TASKS[name].draw() for _ in range(batches)]

    def __len__(self) -> int:
        return BATCH * len(self._batches)

    def __getitem__(self, index: int) -> tuple[object, object]:
        inputs, labels = self._batches[index // BATCH]
        place = index % BATCH
        return _of_one(inputs, place), _of_one(labels, place)


def _of_one(tensors: object, place: int) -> object:
    if isinstance(tensors, dict):
        return {name: tensor[place] for name, tensor in tensors.items()}
    if isinstance(tensors, tuple):
        return tuple(tensor[place] for tensor in tensors)
    assert isinstance(tensors, Tensor)
    return tensors[place]
