from __future__ import annotations

import pytest
from refold.journal.sqlstate import Verdict, verdict


@pytest.mark.parametrize(
    "sqlstate,expected",
    [
        (None, Verdict.AMBIGUOUS),
        ("08000", Verdict.AMBIGUOUS),
        ("08003", Verdict.AMBIGUOUS),
        ("08006", Verdict.AMBIGUOUS),
        ("08P01", Verdict.AMBIGUOUS),
        ("40003", Verdict.AMBIGUOUS),
        ("57P01", Verdict.AMBIGUOUS),
        ("57P02", Verdict.AMBIGUOUS),
        ("57P03", Verdict.AMBIGUOUS),
        ("57P05", Verdict.AMBIGUOUS),
        ("25P03", Verdict.AMBIGUOUS),
        ("25P04", Verdict.AMBIGUOUS),
        ("40001", Verdict.CONTENDED),
        ("40P01", Verdict.CONTENDED),
        ("55P03", Verdict.CONTENDED),
        ("57014", Verdict.CONTENDED),
        ("25006", Verdict.AGAIN),
        ("53100", Verdict.AGAIN),
        ("53200", Verdict.AGAIN),
        ("53300", Verdict.AGAIN),
        ("58030", Verdict.AGAIN),
        ("42501", Verdict.DEFINITE),
        ("42883", Verdict.DEFINITE),
        ("23505", Verdict.DEFINITE),
        ("23514", Verdict.DEFINITE),
        ("22008", Verdict.DEFINITE),
        ("57P04", Verdict.DEFINITE),
        ("RF001", Verdict.DEFINITE),
        ("RF002", Verdict.DEFINITE),
        ("XX000", Verdict.DEFINITE),
    ],
)
def test_each_sqlstate_says_whether_the_call_may_have_been_performed(
    sqlstate: str | None, expected: Verdict
) -> None:
    assert verdict(sqlstate) is expected


@pytest.mark.parametrize(
    "sqlstate,expected",
    [
        (None, Verdict.DEFINITE),
        ("08006", Verdict.AGAIN),
        ("57P03", Verdict.AGAIN),
        ("53300", Verdict.AGAIN),
        ("42501", Verdict.DEFINITE),
    ],
)
def test_what_was_never_sent_is_never_ambiguous(sqlstate: str | None, expected: Verdict) -> None:
    """H01: a parameter psycopg refuses by itself carries no SQLSTATE either, and must not be retried."""
    assert verdict(sqlstate, sent=False) is expected
