"""Factories by name: what may be imported, and what is said when it cannot be."""

import pytest

from shared.errors import DataError, ModelError, NotAllowedError
from shared.factory import load_factory


def test_a_module_that_raises_is_said_to_and_not_thrown_at_the_user(tmp_path, monkeypatch):
    (tmp_path / "broken_syntax.py").write_text("def f(:\n")
    (tmp_path / "broken_inside.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="'broken_syntax' cannot be imported: SyntaxError"):
        load_factory("broken_syntax:f")
    with pytest.raises(DataError, match="'broken_inside' cannot be imported: ZeroDivisionError"):
        load_factory("broken_inside:f", error=DataError)


def test_nothing_is_imported_that_is_not_allowed(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("loud:f", "allowed_too:f", "shared.model.zooo:mlp"):
        with pytest.raises(NotAllowedError, match=r"models\.allowed"):
            load_factory(name, allowed_prefixes=["allowed", "shared.model.zoo"])
    assert load_factory("shared.model.zoo:mlp", allowed_prefixes=["shared.model.zoo"])
