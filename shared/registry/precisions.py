"""Precisions of computing by name; `shared.training.precision` computes in them."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

Precision = Literal["fp32", "bf16", "fp16"]
"""fp32: that of the weights. bf16, fp16: bfloat16 or float16 in the operations that torch's autocast chooses; the weights stay
as they are. With fp16 the loss is scaled, so that small gradients do not vanish."""


def _check(given: Any, judge: ValidatorFunctionWrapHandler) -> Any:
    try:
        return judge(given)
    except ValidationError:  # one complaint, not one for each form
        raise PydanticCustomError("precision", "neither") from None


Precisions = Annotated[
    Annotated[dict[str, Precision], Field(min_length=1)] | Precision,
    WrapValidator(_check),
    Field(json_schema_extra={"allowed": "one of fp32, bf16, fp16, or a table with one for each worker"}),
]
"""One precision for all workers, or one by worker; a worker that is not named has fp32 then."""
