"""Errors and their exit codes: one code for each kind that a user can cause."""

from shared.errors import ExitCode, IsthmusError


def test_codes_are_what_a_process_can_return_and_each_means_one_thing():
    assert len({code.value for code in ExitCode}) == len(ExitCode.__members__)
    assert all(0 <= code <= 255 for code in ExitCode)
    a_shells_own = {code for code in ExitCode if code >= 126}
    assert a_shells_own == {ExitCode.INTERRUPTED, ExitCode.TERMINATED}, "they mean what a shell means by them"


def test_every_error_that_a_user_can_cause_has_a_code_of_its_own_kind():
    # A kind below another one ends a process as that one does.
    own = {kind: kind.exit_code for kind in IsthmusError.__subclasses__() if kind.__module__ == "shared.errors"}
    assert len(own) > 5
    assert all(code not in (ExitCode.OK, ExitCode.INTERNAL) for code in own.values())
    assert len(set(own.values())) == len(own), "two kinds of error share a code"
