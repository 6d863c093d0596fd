"""Things named as `package.module:factory`: models, datasets, losses.

The name is data of a configuration or of a peer, so what may be imported is decided here, before any import runs.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from shared.errors import IsthmusError, ModelError, NotAllowedError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MAX_NAME = 200


def load_factory(
    name: str, *, allowed_prefixes: Sequence[str] | None = None, error: type[IsthmusError] = ModelError
) -> Callable[..., Any]:
    """Import the callable that `name` (`package.module:factory`) stands for.

    allowed_prefixes: dotted module prefixes that may be imported; None allows any (the user's own machine). A prefix
    matches whole parts: `shared.model` allows `shared.model.zoo` and not `shared.modelling`.
    Raises NotAllowedError when the name is not allowed, `error` when it is malformed, not importable or not callable;
    nothing is imported before the name was found to be allowed.
    """
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise error(f"{name[:_MAX_NAME]!r} is not a factory; write it as package.module:factory")
    module_name, attribute = name.split(":")
    if allowed_prefixes is not None and not any(
        module_name == prefix or module_name.startswith(prefix + ".") for prefix in allowed_prefixes
    ):
        allowed = ", ".join(allowed_prefixes)
        raise NotAllowedError(
            f"factory {name!r} is not under an allowed prefix (models.allowed); allowed are {allowed}"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:  # the user's own module may raise anything
        what = str(cause) if isinstance(cause, ImportError) else f"{type(cause).__name__}: {cause}"
        raise error(f"factory {name!r}: module {module_name!r} cannot be imported: {what}") from cause
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise error(f"factory {name!r}: module {module_name!r} has no callable {attribute!r}")
    return factory  # type: ignore[no-any-return]
