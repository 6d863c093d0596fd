"""Models of tables, of series, of pairs and of graphs."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, KINDS, NUMBERS, PAST, FUTURE, NODES = 3, (5, 7, 4), 6, 10, 4, 6


class Tabular(nn.Module):
    """Numbers and kinds, the kinds looked up in tables."""

    def __init__(self, hidden: int = 12) -> None:
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(kinds, min(50, (kinds + 1) // 2)) for kinds in KINDS)
        width = sum(each.embedding_dim for each in self.embeds)
        self.emb_drop, self.bn_cont = nn.Dropout(0.1), nn.BatchNorm1d(NUMBERS)
        sizes = [width + NUMBERS, hidden, hidden // 2]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU(inplace=True), nn.BatchNorm1d(after), nn.Dropout(0.2)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES))

    def forward(self, x_cat: Tensor, x_cont: Tensor) -> Tensor:
        x = torch.cat([embed(x_cat[:, i]) for i, embed in enumerate(self.embeds)], 1)
        x = torch.cat([self.emb_drop(x), self.bn_cont(x_cont)], 1)
        return self.layers(x)


class Recommender(nn.Module):
    """A user and an item: the product of two factors, and layers over both."""

    def __init__(self, users: int = 20, items: int = 30, width: int = 6) -> None:
        super().__init__()
        self.user_gmf, self.item_gmf = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_mlp, self.item_mlp = nn.Embedding(users, width), nn.Embedding(items, width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width // 2))
        self.user_bias = nn.Embedding(users, 1)
        self.predict = nn.Linear(width + width // 2, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        gmf = self.user_gmf(user) * self.item_gmf(item)
        mlp = self.mlp(torch.cat([self.user_mlp(user), self.item_mlp(item)], dim=-1))
        return self.predict(torch.cat([gmf, mlp], dim=-1)).squeeze(-1) + self.user_bias(user).squeeze(-1)


class Forecaster(nn.Module):
    """The next values of a series, of its past and of what is known of the future, normalised series by series."""

    def __init__(self, features: int = 2, known: int = 3, hidden: int = 8) -> None:
        super().__init__()
        self.encoder = nn.GRU(features, hidden, batch_first=True)
        self.known = nn.Linear(known, hidden)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, features))

    def forward(self, past: Tensor, future_known: Tensor, past_mask: Tensor | None = None) -> Tensor:
        if past_mask is not None:
            past = past.masked_fill(~past_mask.unsqueeze(-1), 0.0)
        mean, std = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-5
        _, state = self.encoder((past - mean) / std)
        output, _ = self.decoder(self.known(future_known), state)
        return self.head(output) * std + mean


class Siamese(nn.Module):
    """The distance of two pictures, seen by one network."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True))
        )
        self.fc = nn.Sequential(nn.Linear(6 * 5 * 5, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))
        self.out = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward_once(self, x: Tensor) -> Tensor:
        output = self.cnn(x)
        return self.fc(output.view(output.size()[0], -1))

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return self.out(torch.abs(self.forward_once(input1) - self.forward_once(input2))).squeeze(1)


class Experts(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.gate(x), dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-2)
        return self.norm(x + (weights.unsqueeze(-1) * outputs).sum(dim=-2))


class MixtureOfExperts(nn.Module):
    """Every expert answers, and a gate weighs them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(NUMBERS, width)
        self.layers = nn.ModuleList(Experts(width, 3) for _ in range(2))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class GraphConv(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(before, after)), nn.Parameter(torch.zeros(after))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return torch.matmul(adj, torch.matmul(x, self.weight)) + self.bias


class GraphNetwork(nn.Module):
    """Measurements at places that always have the same neighbours."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        adj = torch.eye(NODES) + torch.diag(torch.ones(NODES - 1), 1) + torch.diag(torch.ones(NODES - 1), -1)
        rate = adj.sum(1).pow(-0.5)
        self.register_buffer("adj", rate[:, None] * adj * rate[None, :])
        self.gc1, self.gc2, self.gc3 = GraphConv(2, hidden), GraphConv(hidden, hidden), GraphConv(hidden, hidden)
        self.fc = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.gc1(x, self.adj))
        x = F.dropout(x, 0.2, training=self.training)
        x = F.relu(self.gc2(x, self.adj))
        x = x + F.relu(self.gc3(x, self.adj))
        return self.fc(x.mean(dim=1))
