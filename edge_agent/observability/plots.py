"""Common parts of the pictures of this side. Drawing needs matplotlib, which a device that only trains need not have."""

from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_MATPLOTLIB = "needs matplotlib, which is not installed; install it with: pip install 'isthmus[plots]'"
"""End of a sentence that begins with the feature that needs it."""


def write_picture(figure: "Figure", path: Path) -> None:
    """Write a picture. The ending of `path` says of which kind, png, svg or pdf. Raises ConfigError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"picture {path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
