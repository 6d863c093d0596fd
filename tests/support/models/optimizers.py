"""Optimizers of a user's own: one that blocks on several workers can have, and some that they cannot."""

import torch


class Signed(torch.optim.Optimizer):
    """The sign of the mean of gradients, as an example of a course has it."""

    def __init__(self, params, lr=0.1, decay=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "decay": decay, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        """Make one update."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, self.state[weight], group)

    def update(self, weight, state, group):
        """Update one parameter."""
        mean = state.setdefault("mean", torch.zeros_like(weight))
        mean.lerp_(weight.grad, 1 - group["decay"])
        weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(mean.sign(), alpha=group["lr"])


class Nadam(torch.optim.NAdam):
    """One of torch's, under a name that trainers of tests allow."""


class Undecayed(Signed):
    """One without weight decay."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)


class OfAll(Signed):
    """Divides by the norm of all gradients."""

    def update(self, weight, _state, group):
        """Update one parameter."""
        norm = sum(
            float(each.grad.norm()) for of in self.param_groups for each in of["params"] if each.grad is not None
        )
        weight.sub_(weight.grad, alpha=group["lr"] / norm)


class Counting(Signed):
    """Counts its steps in an attribute."""

    count = 0

    def step(self):
        """Make one update."""
        self.count += 1
        super().step()

    def update(self, weight, state, group):
        """Update one parameter."""
        super().update(weight, state, {**group, "lr": group["lr"] / self.count})


class Looking(Signed):
    """Takes the mean with older weights every fifth step (Lookahead), and keeps these in an attribute."""

    def __init__(self, params, **told):
        super().__init__(params, **told)
        self.count, self.slow = 0, {}

    def step(self):
        """Make one update."""
        self.count += 1
        super().step()

    def update(self, weight, state, group):
        """Update one parameter."""
        slow = self.slow.setdefault(weight, weight.detach().clone())
        super().update(weight, state, group)
        if self.count % 5 == 0:
            weight.copy_(slow.lerp_(weight, 0.5))


class Noting(Signed):
    """Adds half of the gradient before, which it keeps in an attribute of the parameter."""

    def update(self, weight, state, group):
        """Update one parameter."""
        super().update(weight, state, group)
        weight.sub_(getattr(weight, "before", weight.grad), alpha=group["lr"] / 2)
        weight.before = weight.grad.clone()


class IntSteps(Signed):
    """Keeps a number that is no tensor."""

    def update(self, weight, state, group):
        """Update one parameter."""
        state["step"] = state.get("step", 0) + 1
        super().update(weight, state, group)


class Growing(Signed):
    """Keeps the weights of every second step."""

    def update(self, weight, state, group):
        """Update one parameter."""
        if "mean" in state:
            state["slow"] = weight.clone()
        super().update(weight, state, group)


class Ending(Signed):
    """Ends its process where a parameter has many elements."""

    def update(self, weight, state, group):
        """Update one parameter."""
        if weight.numel() > 1000:
            raise SystemExit(1)
        super().update(weight, state, group)
