"""What a user's own block raises, as an error of ours that names the block."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import ModelError
from shared.foreign import described, foreign_code
from shared.model.chain import Block


@contextmanager
def failures_of(what: str, *blocks: Block) -> Iterator[None]:
    """A block is its user's own and may raise anything; the user has to read it. Raises ModelError."""

    def failure(cause: BaseException) -> ModelError:
        names = " to ".join(repr(block.name) for block in dict.fromkeys((blocks[0], blocks[-1])))
        noun = "block" if len(blocks) == 1 else "blocks"
        return ModelError(f"{what} {noun} {names} failed with {described(cause)}".lstrip())

    with foreign_code(failure):
        yield
