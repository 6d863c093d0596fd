"""The predictor of paper 001 as it is written there, which ours is compared with.

Two fully connected layers on the sub-model's vector, the device's reference times beside what comes of it, two more layers.
What the paper leaves open is decided as in the docstring of `paper_network`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_agent.planning.prediction import Floats, Measured

WIDTH = 64
STEPS = 3000
BATCH = 256
LEARNING_RATE = 1e-3
NEW_WEIGHT = 10.0
"""Weight of a sample of the new device beside one of a known device."""


class _Network(nn.Module):
    def __init__(self, layers: int, references: int) -> None:
        super().__init__()
        self._first = nn.Sequential(nn.Linear(layers, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self._second = nn.Sequential(nn.Linear(WIDTH + references, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, layers_BL: Tensor, reference_BR: Tensor) -> Tensor:
        """Log seconds, centred on the mean of the reference: one a row."""
        both: Tensor = self._second(torch.cat([self._first(layers_BL), reference_BR], dim=1))
        return both.squeeze(1)


def paper_network(
    layers_ML: NDArray[np.uint8], known_DM: Floats, reference: NDArray[np.intp], told: Measured
) -> Floats:
    """Log seconds of all M sub-models on the new device. known_DM: those of the known devices. told: what was measured, the
    reference included.

    Width 64, ReLU, log seconds centred on the mean of the device's log reference, Huber loss, Adam at 1e-3. Samples of the new
    device beyond its reference count ten times. A given seed gives a given network, and nobody else's random state is touched.
    """
    times = dict(zip(told.indices_N.tolist(), told.log_seconds_N.tolist(), strict=True))
    new_M = np.full(known_DM.shape[1], np.nan)
    new_M[told.indices_N] = told.log_seconds_N
    new_M[reference] = np.nan  # it is what the network is told, not what it learns
    reference_ER = np.vstack([known_DM[:, reference], [times[index] for index in reference.tolist()]])
    level_E = reference_ER.mean(axis=1)
    target_EM = np.vstack([known_DM, new_M]) - level_E[:, None]
    rows, columns = np.nonzero(np.isfinite(target_EM))
    weights = torch.from_numpy(np.where(rows == len(known_DM), NEW_WEIGHT, 1.0)).float()
    layers = torch.from_numpy(layers_ML.astype(np.float32))
    references = torch.from_numpy(reference_ER - level_E[:, None]).float()
    targets = torch.from_numpy(target_EM[rows, columns]).float()
    row_index, column_index = torch.from_numpy(rows), torch.from_numpy(columns)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _Network(layers_ML.shape[1], len(reference))
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
        for _ in range(STEPS):
            batch = torch.randint(len(targets), (min(BATCH, len(targets)),))
            predicted = network(layers[column_index[batch]], references[row_index[batch]])
            losses = nn.functional.huber_loss(predicted, targets[batch], reduction="none")
            optimizer.zero_grad()
            torch.autograd.backward((losses * weights[batch]).mean())
            optimizer.step()
        with torch.no_grad():
            centred_M = network(layers, references[-1:].expand(len(layers), -1)).double().numpy()
    predicted_M: Floats = centred_M + level_E[-1]
    return predicted_M
