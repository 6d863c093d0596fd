"""Tokens: each admits anybody who has it, with its own scopes, and a wrong file is an error that says what is wrong."""

import hashlib
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tokens import make_token, read_tokens

SUBJECTS = st.from_regex(r"[A-Za-z0-9_.@-]{1,64}", fullmatch=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokens")


@settings(deadline=None)
@given(subjects=st.lists(SUBJECTS, min_size=1, max_size=5), scopes=st.lists(st.sampled_from(Scope), min_size=1))
def test_every_token_of_a_file_finds_its_subject_and_nothing_else_does(folder, subjects, scopes):
    path = folder / "tokens.toml"
    made = [(subject, *make_token(subject, scopes)) for subject in subjects]
    path.write_text("\n".join(table for _, _, table in made), encoding="utf-8")
    book = read_tokens(path)
    for subject, token, _ in made:
        entry = book.find(token)
        assert (entry.subject, set(entry.scopes)) == (subject, set(scopes))
        for wrong in (token[:-1], token + "x", token.swapcase(), "", "é", "\ud800", token + "\x00"):
            assert book.find(wrong) is None


def test_the_file_holds_no_token():
    token, table = make_token("pi-7", [Scope.READ])
    assert token not in table
    assert tomllib.loads(table)["token"][0]["sha256"] == hashlib.sha256(token.encode()).hexdigest()


def test_tokens_are_long_and_never_the_same():
    tokens = {make_token("a", [Scope.READ])[0] for _ in range(200)}
    assert len(tokens) == 200
    assert all(len(token) >= 43 for token in tokens)


@pytest.mark.parametrize("subject", ["", "é", "a b", "a\n", 'a"', "x" * 65])
def test_an_impossible_subject_is_refused(subject):
    with pytest.raises(ConfigError, match="letters, digits"):
        make_token(subject, [Scope.READ])


HASH = "0" * 64


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[[token]", "not valid TOML"),
        ("token = " + "[" * 100_000, "not valid TOML: it is nested more than 64 levels deep"),
        (f"token = {'9' * 5000}", "not valid TOML"),
        ("[[tokens]]\nsubject='a'", "tokens"),
        (f"[[token]]\nsubject='a'\nscopes=['fly']\nsha256='{HASH}'", "token.0.scopes.0"),
        (f"[[token]]\nsubject='a'\nscopes=[]\nsha256='{HASH}'", "token.0.scopes"),
        (f"[[token]]\nsubject='a b'\nscopes=['read']\nsha256='{HASH}'", "token.0.subject"),
        ("[[token]]\nsubject='a'\nscopes=['read']\nsha256='the token itself'", "token.0.sha256"),
        (f"[[token]]\nscopes=['read']\nsha256='{HASH}'", "token.0.subject"),
        (f"[[token]]\nsubject='a'\nscopes=['read']\nsha256='{HASH}'\n" * 2, "the same token twice"),
    ],
)
def test_a_file_that_cannot_be(folder, content, says):
    path = folder / "wrong.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        read_tokens(path)
    assert says in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value).strip()
    assert "the token itself" not in str(raised.value), "somebody who put a token here does not read it in a log"


def test_a_file_without_tokens_lets_nobody_in(folder):
    path = folder / "empty.toml"
    path.write_text("# nobody yet\n")
    assert read_tokens(path).find("") is None
