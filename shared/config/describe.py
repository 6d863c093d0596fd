"""Descriptions of allowed values, from the JSON schemas of their types.

One source for error messages and generated documents, so that neither can drift from what is checked.
"""

import functools
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from shared.config.toml import toml_value

Schema = dict[str, Any]


def first_complaint(error: ValidationError, whole: str) -> str:
    """Return the first complaint of an error, with its place. whole: the place where none is named. It quotes no input."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"


def schema_at(model: type[BaseModel], location: Sequence[str | int]) -> Schema | None:
    """Schema of the value at `location` (names and list indices) in `model`, or None when there is none."""
    root = _schema_of(model)
    schema: Schema | None = _resolve(root, root)
    for part in location:
        if schema is None:
            return None
        schema = _resolve(root, _child(schema, part))
    return schema


@functools.cache
def _schema_of(model: type[BaseModel]) -> Schema:
    """To read only: it takes more time to make than all else of loading a configuration."""
    return model.model_json_schema()


def _child(schema: Schema, part: str | int) -> Schema | None:
    if isinstance(part, str):
        others = schema.get("additionalProperties")
        child: Schema | None = schema.get("properties", {}).get(part, others if isinstance(others, dict) else None)
        return child
    fixed: list[Schema] = schema.get("prefixItems", [])
    return fixed[part] if part < len(fixed) else schema.get("items")


def _resolve(root: Schema, schema: Schema | None) -> Schema | None:
    """Follow a reference and drop the `null` of an optional value."""
    if schema is None:
        return None
    described = {key: value for key, value in schema.items() if key == "allowed"}
    if "anyOf" in schema:
        schema = next(option for option in schema["anyOf"] if option.get("type") != "null")
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return {**schema, **described}


def allowed_text(schema: Schema) -> str:
    """Describe the values that this schema allows, to stand after "it must be"."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    match schema.get("type"):
        case "integer":
            return f"an integer{_range_text(schema)}"
        case "number":
            return f"a number{_range_text(schema)}"
        case "boolean":
            return "true or false"
        case "string":
            return "a path" if schema.get("format") == "path" else "a string"
        case "array" if "prefixItems" in schema:
            items = schema["prefixItems"]
            return f"a list of {len(items)}, each {allowed_text(items[0])}"
        case "array":
            return f"a list, each item {allowed_text(schema['items'])}"
        case "object":
            return "a table"
    return "a value"


def _range_text(schema: Schema) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if schema["type"] == "integer" and above is not None:
        low, above = above + 1, None
    if low is not None and high is not None:
        return f" of {toml_value(low)} to {toml_value(high)}"
    ends = []
    if low is not None:
        ends.append(f"of {toml_value(low)} or more")
    if above is not None:
        ends.append(f"above {toml_value(above)}")
    if high is not None:
        ends.append(f"of {toml_value(high)} or less")
    if below is not None:
        ends.append(f"below {toml_value(below)}")
    return " " + " and ".join(ends) if ends else ""
