"""A value that follows its files: an unreadable file leaves it unchanged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.transport.auth.reloaded import Reloaded

CONTENTS = st.lists(st.one_of(st.none(), st.sampled_from(["one", "two", "three", "bad"])), max_size=12)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("reloaded") / "file"


@settings(deadline=None)
@given(contents=CONTENTS)
def test_the_value_is_what_the_file_last_said_that_could_be_read(path, contents):
    def read():
        text = path.read_text() if path.exists() else "bad"
        if text == "bad":
            raise ConfigError("it cannot be used")
        return text

    path.write_text("first")
    reloaded, good = Reloaded([path], read), "first"
    for content in contents:
        if content is None:
            path.unlink(missing_ok=True)
        else:
            scratch = path.with_name("scratch")
            scratch.write_text(content)
            scratch.replace(path)
            good = good if content == "bad" else content
        assert reloaded.get() == good


def test_nothing_is_read_while_nothing_changes(path):
    reads = []
    path.write_text("x")
    reloaded = Reloaded([path], lambda: reads.append(path.read_text()))
    for _ in range(10):
        reloaded.get()
    assert reads == ["x"]


def test_an_unreadable_file_at_the_beginning_is_an_error(path):
    def read():
        raise ConfigError("it cannot be used")

    with pytest.raises(ConfigError, match="cannot be used"):
        Reloaded([path], read)
