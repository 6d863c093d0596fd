"""Attacks of a curious trainer on the data that it gets: simple ones, each of which returns the share of it that
succeeds.

All use what crosses. `nearest_rows`, `labels_in_error_gradients` and `inverted` use the weights besides, which both sides draw
from one seed.
"""

import torch
from torch import Tensor, nn

EXACT = 1e-3
"""The greatest difference of a number that counts as found, in relation to the largest of the sample."""


def best_correlations(inputs_BN: Tensor, features_BF: Tensor) -> Tensor:
    """For each number of a sample that varies, its largest correlation, without sign, with a number of the feature.

    inputs_BN, features_BF: flat, of the same samples. Returns one value from 0 to 1 for each number that varies.
    """
    inputs, features = _standardised(inputs_BN), _standardised(features_BF)
    correlations: Tensor = (inputs.T @ features).abs()
    return correlations.max(dim=1)[0]


def read_off(inputs_BN: Tensor, features_BF: Tensor) -> float:
    """The share of a sample's numbers that one number of the feature gives, but for a factor and an offset."""
    return float((best_correlations(inputs_BN, features_BF) > 1 - EXACT**2).double().mean())


def nearest_rows(tokens_BT: Tensor, features_BTF: Tensor, prototypes_VF: Tensor) -> float:
    """The share of tokens that are found as the nearest of the rows that the trainer expects of each token."""
    return float((torch.cdist(features_BTF, prototypes_VF).argmin(-1) == tokens_BT).double().mean())


def counted_tokens(tokens_BT: Tensor, gradient_VE: Tensor) -> float:
    """The share of a vocabulary of which the gradient of an embedding says rightly whether the batch has it."""
    had = torch.zeros(len(gradient_VE), dtype=torch.bool)
    had[tokens_BT.reshape(-1)] = True
    return float((had == gradient_VE.abs().sum(1).gt(0)).double().mean())


def samples_in_linear_gradient(inputs_BN: Tensor, weight_ON: Tensor, bias_O: Tensor) -> float:
    """The share of a batch's samples that stand in the gradient of a linear layer: a row over the gradient of its bias."""
    rows = weight_ON[bias_O != 0] / bias_O[bias_O != 0].unsqueeze(1)
    if not len(rows):
        return 0.0
    difference = (inputs_BN.unsqueeze(1) - rows.unsqueeze(0)).abs().amax(-1).amin(1)
    return float((difference <= EXACT * inputs_BN.abs().amax(1)).double().mean())


def label_in_bias_gradient(bias_C: Tensor) -> int:
    """The label of a single sample: of all outputs only its own should have been larger."""
    return int(bias_C.argmin())


def labels_in_error_gradients(errors_BF: Tensor, weight_CF: Tensor) -> Tensor:
    """The labels of a batch, from the error gradients at the last layer's input and that layer's weights."""
    outputs_BC: Tensor = torch.linalg.lstsq(weight_CF.T, errors_BF.T).solution.T
    return outputs_BC.argmin(1)


def inverted(first: nn.Module, features: Tensor, steps: int = 300) -> Tensor:
    """Inputs whose features are like those that came, found by descent with the weights of the first blocks.

    features: with the batch first. first: the blocks, on inputs of one channel with the features' height and width.
    """
    guess = torch.full((len(features), 1, *features.shape[2:]), 0.5, requires_grad=True)
    optimizer = torch.optim.Adam([guess], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        (first(guess) - features).square().mean().backward()
        optimizer.step()
    return guess.detach()


def _standardised(values_BN: Tensor) -> Tensor:
    """The columns that vary, with mean 0 and length 1."""
    centred = values_BN.double() - values_BN.double().mean(0)
    lengths = centred.norm(dim=0)
    varying = lengths > 1e-9
    standardised: Tensor = centred[:, varying] / lengths[varying]
    return standardised
