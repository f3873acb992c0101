"""Observations of a client in a scenario, and complaints: the conditions that fail a client."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import attrs

from lro_conform._checks import Check, Verdict
from lro_conform.client._launch import ClientSaid
from lro_conform.client._steps import POLLS, SeenCall, Verb

MARGIN_SECONDS: Final = 2.0
"""Seconds that a client has after its timeout to print its outcome."""
STARTUP_SECONDS: Final = 30.0
"""Seconds that a client has after its start to connect; after that it is killed."""
MAX_CALLS_A_SECOND: Final = 20.0
"""The highest average rate of polls at which a client counts as pausing between them."""
_FEW_CALLS: Final = 20
_EARLY_SECONDS: Final = 0.1
"""Seconds by which a call may be early, because clocks and timers are not exact."""
_GROWTH: Final = 1.25
_SLOW_SECONDS: Final = 0.5
_FEW_PAUSES: Final = 3
"""Minimum number of pauses from which growth is judged, since a pause may be long by chance."""
_EARLIEST: Final = 0.5
"""Share of its timeout that a client must wait, even if its next pause would exceed the timeout."""
_MAX_SHOWN: Final = 300


@attrs.frozen(kw_only=True)
class ClientRun:
    """Observations of a client in a scenario. Times are by the monotonic clock."""

    calls: Sequence[SeenCall]
    elsewhere: Sequence[SeenCall] = ()
    """Calls to the second server, to which the first server redirects."""
    connected: float | None
    """The time of the first connection."""
    said: ClientSaid
    finished: float
    """The time when the client printed its outcome, or ended without an outcome."""
    overdue: bool
    """True if the client was killed before it printed an outcome."""
    timeout: float
    task: str = "wait"
    exit_status: int = 0
    errors: str = ""
    notes: dict[str, float] = attrs.field(factory=dict)

    @property
    def seconds(self) -> float:
        """The seconds from the first connection to the outcome."""
        return self.finished - (self.finished if self.connected is None else self.connected)

    def of(self, *verbs: Verb) -> list[SeenCall]:
        """Return the calls of these verbs."""
        return [one for one in self.calls if one.verb in verbs]


Complaint: TypeAlias = Callable[[ClientRun], str | None]
"""A function that returns the reason why a run fails, as a sentence; None if it does not fail."""


class OtherVerdict(Exception):
    """Raised if a run does not exercise a check; it has the verdict and the reason."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(verdict, why)
        self.verdict = verdict
        self.why = why


@attrs.frozen
class ScenarioCheck:
    """A check, and the complaints that make a run fail the check.

    A run without an outcome fails the check, unless ``unfinished`` is true: then it is judged like
    any other run.
    """

    check: Check
    complaints: tuple[Complaint, ...]
    unfinished: bool = False

    def judge(self, run: ClientRun) -> tuple[Verdict, tuple[str, ...]]:
        """Return the verdict on a run, and the facts that support it."""
        seen = _summary(run)
        try:
            found = None if self.unfinished and run.calls else no_outcome(run)
            if found is None:
                said = (complain(run) for complain in self.complaints)
                found = next((one for one in said if one is not None), None)
        except OtherVerdict as exc:
            return exc.verdict, (exc.why,)
        if found is None:
            return Verdict.PASSED, (seen,)
        return Verdict.FAILED, (found, seen)


def shown(value: object) -> str:
    """Return an untrusted value as one line of ASCII, shortened."""
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _summary(run: ClientRun) -> str:
    counts = {verb: len(run.of(verb)) for verb in Verb if run.of(verb)}
    calls = ", ".join(f"{number} of {verb}" for verb, number in counts.items()) or "none"
    said = _said(run.said) if run.said.outcome else "nothing"
    return f"calls seen: {calls}; printed after {run.seconds:.2f} s: {said}"


def _said(said: ClientSaid) -> str:
    return shown({name: value for name, value in attrs.asdict(said).items() if value is not None})


def no_outcome(run: ClientRun) -> str | None:
    """Return the reason why a run has no outcome; None if it has one.

    Raises:
        OtherVerdict: The adapter reports that it does not support the task.
    """
    if run.connected is None:
        return no_connection(run)
    if run.overdue:
        late = run.timeout + MARGIN_SECONDS
        return f"no outcome within {late:g} s, with a timeout of {run.timeout:g} s; it was killed"
    if not run.said.outcome:
        return f"it ended with exit status {run.exit_status} and no outcome{_last_words(run)}"
    if run.said.outcome == "unsupported" and run.task == "wait":
        return "the adapter says that it cannot wait, which is what clients are for"
    if run.said.outcome == "unsupported":
        raise OtherVerdict(Verdict.ABSENT, "the adapter does not support the task")
    return None


def no_connection(run: ClientRun) -> str:
    """Describe the end of a client that did not connect to the server."""
    how = "was killed" if run.overdue else f"ended with exit status {run.exit_status}"
    return f"the client {how} without a connection to the server{_last_words(run)}"


def _last_words(run: ClientRun) -> str:
    lines = run.errors.strip().splitlines()
    return f"; standard error ends with {shown(lines[-1])}" if lines else ""


def says(*outcomes: str) -> Complaint:
    """Require one of these outcomes."""
    wanted = " or ".join(map(shown, outcomes))

    def complain(run: ClientRun) -> str | None:
        said = run.said
        if said.outcome in outcomes:
            return None
        return f"the outcome must be {wanted}, it is {shown(said.outcome)}"

    return complain


def _plain(value: Any) -> Any:
    """Return a message without its type and default values, and with names in one spelling."""
    if isinstance(value, dict):
        found = {
            name.replace("_", "").lower(): _plain(one)
            for name, one in value.items()
            if name != "@type"
        }
        return {name: one for name, one in found.items() if one not in ("", None, [], {})}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def same_message(one: object, other: object) -> bool:
    """Return True if two messages are equal; each spelling of a field in ProtoJSON is allowed."""
    return isinstance(one, dict) and isinstance(other, dict) and bool(_plain(one) == _plain(other))


def responds(*responses: dict[str, Any]) -> Complaint:
    """Require a response, which must be one of these."""

    def complain(run: ClientRun) -> str | None:
        wrong = says("response")(run)
        given = run.said.response
        if wrong is not None or any(same_message(given, one) for one in responses):
            return wrong
        return f"the response must be {shown(responses[0])}, it is {shown(given)}"

    return complain


def invents_nothing(*responses: dict[str, Any]) -> Complaint:
    """Refuse a response that is not one of these; without arguments, accept only null."""

    def complain(run: ClientRun) -> str | None:
        said = run.said
        if said.outcome != "response" or (not responses and said.response is None):
            return None
        if any(same_message(said.response, one) for one in responses):
            return None
        return f"the server sent no such response: {shown(said.response)}"

    return complain


def fails_with(*codes: int, message: str | None = None) -> Complaint:
    """Require an error of the operation with one of these codes, and with the message."""

    def complain(run: ClientRun) -> str | None:
        wrong = says("error")(run)
        said = run.said
        if wrong is not None:
            return wrong
        if said.code not in codes or isinstance(said.code, bool):
            return f"the code must be {codes[0]}, it is {shown(said.code)}"
        if message is not None and message not in str(said.message):
            return f"the message must contain {shown(message)}, it is {shown(said.message)}"
        return None

    return complain


def polls_at_most(number: int) -> Complaint:
    """Limit the number of calls that read the state."""

    def complain(run: ClientRun) -> str | None:
        found = len(run.of(*POLLS))
        return None if found <= number else f"it polled {found} times, at most {number} make sense"

    return complain


def calls_once(verb: Verb) -> Complaint:
    """Require exactly one call of a verb."""

    def complain(run: ClientRun) -> str | None:
        found = len(run.of(verb))
        return None if found == 1 else f"it called {verb} {found} times instead of once"

    return complain


def only_reads(run: ClientRun) -> str | None:
    """Require that the client makes no call that changes anything."""
    found = run.of(Verb.CANCEL, Verb.DELETE)
    return f"it called {found[0].verb}, which it was not asked to do" if found else None


def pauses(run: ClientRun) -> str | None:
    """Require that the client pauses between polls."""
    polls = run.of(*POLLS)
    rate = len(polls) / max(run.seconds, 1.0)
    if len(polls) <= _FEW_CALLS or rate <= MAX_CALLS_A_SECOND:
        return None
    return f"it polled {rate:.0f} times a second; more than {MAX_CALLS_A_SECOND:g} is a storm"


def _pauses_between(calls: Sequence[SeenCall]) -> list[float]:
    return [
        max(later.at - (earlier.answered or earlier.at), 0.0) for earlier, later in pairwise(calls)
    ]


def backs_off(run: ClientRun) -> str | None:
    """Require that the pauses between polls grow, or are long from the start."""
    found = _pauses_between(run.of(*POLLS))[:-1]  # the client's timeout may cut the last pause
    share = max(len(found) // 3, 1)
    if len(found) < _FEW_PAUSES or statistics.median(found) >= _SLOW_SECONDS:
        return None
    # A stall of the machine makes some pauses long, but not the pauses of both earlier thirds.
    thirds = found[:share], found[share:-share], found[-share:]
    *before, last = (statistics.median_low(some) for some in thirds)
    first = min(before)
    if last >= first * _GROWTH:
        return None
    return f"its pauses do not grow: {first:.2f} s at first, {last:.2f} s at last"


def quiet_after_end(run: ClientRun) -> str | None:
    """Require no poll after a reply that says the operation is done."""
    ends = [one.answered for one in run.calls if one.final and one.answered is not None]
    after = [one for one in run.of(*POLLS) if ends and one.at > min(ends)]
    return f"it polled {len(after)} more times after the operation was done" if after else None


def waits_after(index: int, seconds: float) -> Complaint:
    """Require a pause of at least ``seconds`` after the poll with this index."""

    def complain(run: ClientRun) -> str | None:
        polls = run.of(Verb.GET)
        if len(polls) < index + 2:
            return None
        took = polls[index + 1].at - polls[index].at  # ``took`` includes the call's duration
        if took >= seconds - _EARLY_SECONDS:
            return None
        return f"it polled again after {took:.2f} s; the server had asked for {seconds:g} s"

    return complain


def not_early(run: ClientRun) -> str | None:
    """Require that the client does not give up before its timeout."""
    if run.seconds >= run.timeout * _EARLIEST:
        return None
    return f"it gave up after {run.seconds:.2f} s, with a timeout of {run.timeout:g} s"


def not_of_operation(run: ClientRun) -> str | None:
    """Require that the client does not report a failed call as the operation's error."""
    if run.said.outcome != "error":
        return None
    return "it reports an error of the operation, but only a call has failed"


def keeps_token(run: ClientRun) -> str | None:
    """Require that the bearer token is sent only to the first server."""
    if not any(one.token for one in run.calls):
        raise OtherVerdict(
            Verdict.SKIPPED, "the client sent no LRO_CONFORM_TOKEN to the first server"
        )
    if any(one.token for one in run.elsewhere):
        return "it sent the bearer token to the server that it was redirected to"
    return None


def calls_at_most(number: int) -> Complaint:
    """Limit the number of calls of all kinds."""

    def complain(run: ClientRun) -> str | None:
        found = len(run.calls)
        return None if found <= number else f"it made {found} calls; {number} are more than enough"

    return complain


def if_called(verb: Verb, *complaints: Complaint) -> tuple[Complaint, ...]:
    """Apply these complaints to clients that call a verb; other clients are not judged."""

    def complain(run: ClientRun) -> str | None:
        if not run.of(verb):
            raise OtherVerdict(Verdict.ABSENT, f"it does not call {verb}")
        return None

    return (complain, *complaints)


def lists_names(names: Collection[str]) -> Complaint:
    """Require a response that is a list of exactly these names."""

    def complain(run: ClientRun) -> str | None:
        wrong = says("response")(run)
        found = run.said.response
        if wrong is not None:
            return wrong
        if isinstance(found, list) and sorted(map(str, found)) == sorted(names):
            return None
        return f"the response must be {shown(sorted(names))}, it is {shown(found)}"

    return complain
