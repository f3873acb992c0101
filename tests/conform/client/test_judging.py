"""The complaints about a client's run: the runs that cause a complaint, and its text."""

from __future__ import annotations

from typing import Any

import pytest

from lro_conform import Level, Verdict
from lro_conform._sources import aip
from lro_conform.client import _judging as judging
from lro_conform.client._judging import ClientRun, Complaint
from lro_conform.client._launch import ClientSaid, read_said
from lro_conform.client._scenario import RESPONSE, rule
from lro_conform.client._steps import SeenCall, Verb


def seen(verb: Verb, at: float, took: float = 0.1, *, final: bool = False) -> SeenCall:
    return SeenCall(verb=verb, at=at, token=True, answered=at + took, final=final)


def run(*calls: SeenCall, said: ClientSaid | None = None, **more: Any) -> ClientRun:
    given = {"connected": 0.0, "finished": 3.0, "overdue": False, "timeout": 3.0, **more}
    return ClientRun(calls=calls, said=said or ClientSaid("timeout"), **given)


def polls(*moments: float) -> list[SeenCall]:
    return [seen(Verb.GET, moment) for moment in moments]


ANSWER = ClientSaid("response", response={"resource_name": "images/other"})

TIMEOUT = 'it is "timeout"'
WRONG: list[tuple[Complaint, ClientRun, str]] = [
    (judging.says("lost", "error"), run(), TIMEOUT),
    (judging.responds(RESPONSE), run(), TIMEOUT),
    (judging.responds(RESPONSE), run(said=ANSWER), "the response must be {"),
    (judging.invents_nothing(RESPONSE), run(said=ANSWER), "the server sent no such response"),
    (judging.fails_with(5), run(), TIMEOUT),
    (judging.fails_with(5), run(said=ClientSaid("error", 7)), "the code must be 5, it is 7"),
    (judging.fails_with(1), run(said=ClientSaid("error", True)), "the code must be 1"),
    (judging.fails_with(5, message="a"), run(said=ClientSaid("error", 5, "b")), 'it is "b"'),
    (judging.polls_at_most(1), run(*polls(0, 1)), "it polled 2 times, at most 1 make sense"),
    (judging.calls_once(Verb.CANCEL), run(), "it called CancelOperation 0 times"),
    (judging.calls_at_most(1), run(*polls(0, 1)), "it made 2 calls; 1 are more than enough"),
    (judging.only_reads, run(seen(Verb.DELETE, 1)), "it called DeleteOperation"),
    (judging.pauses, run(*polls(*(n / 100 for n in range(90)))), "it polled 30 times a second"),
    (judging.backs_off, run(*polls(0, 0.3, 0.6, 0.9, 1.2)), "0.20 s at first, 0.20 s at last"),
    (  # one pause is long by chance
        judging.backs_off,
        run(*polls(0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.9, 3.2, 3.5)),
        "0.20 s at first, 0.20 s at last",
    ),
    (
        judging.quiet_after_end,
        run(seen(Verb.GET, 0, final=True), *polls(0.05, 1)),
        "it polled 1 more times after the operation was done",
    ),
    (judging.waits_after(0, 2), run(*polls(0, 1)), "it polled again after 1.00 s"),
    (judging.not_early, run(finished=1.0), "it gave up after 1.00 s, with a timeout of 3 s"),
    (judging.not_of_operation, run(said=ClientSaid("error", 1)), "it reports an error of the"),
    (judging.keeps_token, run(*polls(0), elsewhere=polls(1)), "it sent the bearer token to"),
    (judging.lists_names(["a"]), run(), TIMEOUT),
    (
        judging.lists_names(["b", "a"]),
        run(said=ClientSaid("response", response=["a"])),
        'the response must be ["a", "b"], it is ["a"]',
    ),
]
RIGHT: list[tuple[Complaint, ClientRun]] = [
    (judging.responds({"resourceName": "images/other"}), run(said=ANSWER)),
    (judging.invents_nothing(), run(said=ClientSaid("response"))),
    (judging.pauses, run(*polls(*(n / 10 for n in range(30))))),
    (judging.backs_off, run(*polls(0, 0.8, 1.1, 1.5))),  # too few polls to judge
    (judging.backs_off, run(*polls(0, 0.2, 0.5, 1.1, 1.2))),  # the last pause was cut short
    (judging.backs_off, run(*polls(0, 0.2, 0.5, 1.1))),
    (judging.backs_off, run(*polls(0, 1, 2))),
    (judging.backs_off, run(*polls(0, 0.6, 0.8, 1.05, 1.4, 1.6))),  # the client hung at first
    (judging.backs_off, run(*polls(0, 0.2))),
    (judging.waits_after(0, 2), run(*polls(0, 2.1))),
    (judging.waits_after(0, 2), run(*polls(0))),
]


def test_failed_check_says_what_is_wrong() -> None:
    found = [(complain(given), fact) for complain, given, fact in WRONG]
    assert [(said, fact) for said, fact in found if said is None or fact not in said] == []
    assert [complain(given) for complain, given in RIGHT] == [None] * len(RIGHT)


def test_killed_client_is_still_judged_by_checks_of_unfinished_runs() -> None:
    killed = run(*polls(0, 1), said=ClientSaid(), overdue=True)
    for unfinished, verdict in ((True, Verdict.PASSED), (False, Verdict.FAILED)):
        made = rule(Level.MUST, "a.b", "It pauses.", aip(1), fails=(), unfinished=unfinished)
        assert made(frozenset({"http"})).judge(killed)[0] is verdict


def test_a_run_without_a_connection_fails_every_check() -> None:
    made = rule(Level.MUST, "a.b", "It pauses.", aip(1), unfinished=True)(frozenset({"http"}))
    verdict, facts = made.judge(
        run(said=ClientSaid(), connected=None, exit_status=3, errors="no\n")
    )
    assert verdict is Verdict.FAILED
    assert facts[0] == (
        "the client ended with exit status 3 without a connection to the server; standard error"
        ' ends with "no"'
    )


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        (b"", ""),
        (b'{"outcome": "lost"}\nand more\n', "lost"),
        (b'{"outcome": "timeout"}\n  {"outcome": "lost"}', "lost"),
        (b'{"outcome": "fine"}', ""),
        (b'\xff\n{"outcome": ["lost"]}\n{"outcome":', ""),
        (b'{"a":' * 100_000, ""),
    ],
)
def test_the_last_line_with_an_outcome_counts(output: bytes, outcome: str) -> None:
    assert read_said(output).outcome == outcome


def test_a_long_value_is_cut_and_has_no_control_characters() -> None:
    assert len(judging.shown("x" * 1000)) < 310
    assert judging.shown("\x1b[31m") == '"\\u001b[31m"'
