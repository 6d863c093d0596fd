"""Lines that a user has to write."""

import ast
import tokenize
from pathlib import Path

NOT_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
ORDER_IMPORT = "from order import Order"
"""Line that a user would not need: it gives all programs the same batches."""


def lines_of(path: Path) -> int:
    """Count the lines of a file in Python or TOML that are neither blank nor a comment nor a docstring."""
    if path.suffix == ".toml":
        return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in path.read_text().splitlines())
    source = path.read_text()
    described: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            described.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    written: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in NOT_CODE and token.type != tokenize.ENCODING:
                written.update(range(token.start[0], token.end[0] + 1))
    return len(written - described) - (ORDER_IMPORT in source.splitlines())
