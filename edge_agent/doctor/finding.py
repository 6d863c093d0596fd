"""Findings of checks, and the advice that goes with them."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    ADVICE = "advice"
    """It will train, and could do better."""
    FIX = "fix"
    """It will not train before this is fixed."""
    SKIPPED = "skipped"
    """It could not be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. remedy: the action to take; empty if there is none."""

    check: str
    status: Status
    result: str
    remedy: str = ""


def fine(check: str, result: str) -> Finding:
    """Nothing is to be done."""
    return Finding(check, Status.OK, result)


def advise(check: str, result: str, remedy: str) -> Finding:
    """Something could be better."""
    return Finding(check, Status.ADVICE, result, remedy)


def fix(check: str, result: str, remedy: str) -> Finding:
    """Something must be fixed."""
    return Finding(check, Status.FIX, result, remedy)


def skipped(check: str, why: str) -> Finding:
    """It was not looked at."""
    return Finding(check, Status.SKIPPED, why)
