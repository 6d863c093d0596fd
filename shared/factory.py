"""Things named as `package.module:factory`: models, datasets, losses.

The name is data of a configuration or of a peer. What a peer may name is what the operator has listed (`Allowed`): exact
factories, or packages, whose own definitions alone count. The name is judged before any import runs.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from isthmus_entry_points import PACKAGES
from shared.errors import IsthmusError, ModelError, NotAllowedError
from shared.foreign import described, foreign_code, place_of, root_cause
from shared.imported import noting

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MAX_NAME = 200
_RUNS_ON_IMPORT = "__main__"

Allowed = Sequence[str]
"""Names that a peer may send: `package.module:factory` for that factory alone, or `package` for the definitions of the
package and its modules, without `__main__` and names that begin with an underscore."""


def load_factory(
    name: str, *, key: str = "", allowed: Allowed | None = None, error: type[IsthmusError] = ModelError
) -> Callable[..., Any]:
    """Import the callable that `name` (`package.module:factory`) stands for.

    key: of the configuration that asks for it, with which a refusal then begins. allowed: what may be named; None allows
    anything (the user's own machine). A package matches whole parts: `shared.model` allows `shared.model.zoo:mlp` and nothing
    of `shared.modelling`.
    Raises NotAllowedError when the name is not allowed, `error` when it is malformed, not importable or not callable.
    Nothing is imported before the name was found to be allowed.
    """
    try:
        return _loaded(name, allowed, error)
    except IsthmusError as refusal:
        if not key:
            raise
        raise type(refusal)(f"{key}: {refusal}") from refusal


def _loaded(name: str, allowed: Allowed | None, error: type[IsthmusError]) -> Callable[..., Any]:
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise error(f"{name[:_MAX_NAME]!r} is not a factory; write it as package.module:factory")
    module_name, attribute = name.split(":")
    packages = None if allowed is None else _packages_for(name, module_name, attribute, allowed)
    factory = _imported(name, module_name, attribute, error)
    if not callable(factory):
        raise error(f"factory {name!r}: module {module_name!r} has no callable {attribute!r}")
    if packages is not None and not any(_is_under(_definer(factory), package) for package in packages):
        raise NotAllowedError(
            f"factory {name!r} is not allowed (models.allowed): {_whence(factory, module_name)}, "
            f"and of a package only its own definitions are meant; the operator can allow {name!r} by its full name"
        )
    return factory  # type: ignore[no-any-return]


def is_allowed(name: str, allowed: Allowed) -> bool:
    """Tell whether a name may be named, as far as the name tells. Nothing is imported."""
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        return False
    module_name, attribute = name.split(":")
    try:
        _packages_for(name, module_name, attribute, allowed)
    except NotAllowedError:
        return False
    return True


def _packages_for(name: str, module_name: str, attribute: str, allowed: Allowed) -> list[str] | None:
    """The allowed packages that the name lies under; None where the name itself is allowed. Raises NotAllowedError."""
    if name in allowed:
        return None
    packages = [entry for entry in allowed if _is_under(module_name, entry)]
    if not packages:
        raise NotAllowedError(
            f"factory {name!r} is not allowed (models.allowed); allowed are {', '.join(allowed) or 'none'}"
        )
    if _RUNS_ON_IMPORT in module_name.split(".") or attribute.startswith("_"):
        raise NotAllowedError(
            f"factory {name!r} is not allowed (models.allowed): a package lends neither {_RUNS_ON_IMPORT} nor names that begin "
            "with an underscore"
        )
    return packages


def _is_under(module_name: str, package: str) -> bool:
    return module_name == package or module_name.startswith(package + ".")


def _whence(factory: Callable[..., Any], module_name: str) -> str:
    if hasattr(factory, "__qualname__"):
        return f"{module_name!r} merely imports it from {_definer(factory)!r}"
    return f"it is an object whose class {type(factory).__name__} is of {_definer(factory)!r}"


def _definer(factory: Callable[..., Any]) -> str:
    """The module that defines a factory; of a callable object the one that defines its class."""
    return str(getattr(factory, "__module__", None) or type(factory).__module__)


def _imported(name: str, module_name: str, attribute: str, error: type[IsthmusError]) -> Any:
    def refusal(failure: BaseException) -> IsthmusError:
        what = str(failure) if isinstance(failure, ImportError) and str(failure) else described(failure)
        root = root_cause(failure)
        because = "" if root is failure else f", because of {described(root)}"
        place = f" ({place})" if (place := place_of(root)) else ""
        hint = _where_to_look(module_name) if _is_absent(failure, module_name) else ""
        return error(f"factory {name!r}: module {module_name!r} cannot be imported: {what}{because}{place}{hint}")

    with foreign_code(refusal), noting(module_name):
        return getattr(importlib.import_module(module_name), attribute, None)


def _is_absent(failure: BaseException, module_name: str) -> bool:
    """Tell whether the named module, or a package around it, is absent, and not a module that it imports."""
    return (
        isinstance(failure, ModuleNotFoundError) and failure.name is not None and _is_under(module_name, failure.name)
    )


def _where_to_look(module_name: str) -> str:
    package = module_name.partition(".")[0]
    if package in PACKAGES:
        return f"; {package} is a package of Isthmus here, so give yours another name"
    return (
        f"; PYTHONPATH must name the folder that holds {package}.py or the package {package}, as PYTHONPATH=. names the "
        "working folder"
    )
