"""Errors of a user's block, turned into a ModelError that names the block."""

from typing import NoReturn

from shared.errors import ModelError
from shared.foreign import described, foreign_code, raise_translated
from shared.model.chain import Block
from shared.model.division.verify import embedding_advice


def failures_of(what: str, *blocks: Block) -> foreign_code:
    """Run the body, which calls these blocks. A user's block may raise anything; this raises a ModelError that quotes it."""
    return foreign_code(lambda cause: block_failure(what, cause, *blocks))


def raise_block_failure(what: str, cause: BaseException, *blocks: Block) -> NoReturn:
    """Raise what `failures_of` makes of what blocks have raised; see `raise_translated`."""
    raise_translated(cause, lambda each: block_failure(what, each, *blocks))


def block_failure(what: str, cause: BaseException, *blocks: Block) -> ModelError:
    """The error that names these blocks and quotes the cause."""
    names = " to ".join(repr(block.name) for block in dict.fromkeys((blocks[0], blocks[-1])))
    noun = "block" if len(blocks) == 1 else "blocks"
    advice = embedding_advice(cause, *(block.module for block in blocks))
    return ModelError(f"{what} {noun} {names} failed with {described(cause)}{advice}".lstrip())
