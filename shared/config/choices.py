"""Sections of a configuration whose key `name` chooses which of the other keys are used."""

from collections.abc import Collection, Mapping

from shared.config.section import Section


def refuse_unused(section: Section, name: str, keys_of: Mapping[str, Collection[str]]) -> None:
    """Refuse a key that only other choices of `name` use, unless it is at its default: set, it would silently do nothing.

    keys_of: the keys that each choice has for itself. Raises ValueError.
    """
    own = {key for keys in keys_of.values() for key in keys}
    for key, field in type(section).model_fields.items():
        if key in own and key not in keys_of[name] and getattr(section, key) != field.default:
            users = ", ".join(choice for choice, keys in keys_of.items() if key in keys)
            raise ValueError(f"{name} has no {key}, which belongs to {users}; leave it out or choose one of these")
