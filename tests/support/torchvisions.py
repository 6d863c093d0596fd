"""The import of torchvision, and of libraries that need it, where it finds no operators of its own."""

import sys

import torch

_DEFINED: list[torch.library.Library] = []


def torchvision_imported() -> None:
    """Import torchvision where it is installed. One that is built for CUDA finds no operators beside a CPU build of torch."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DEFINED.append(library)
    except ImportError:
        pass
