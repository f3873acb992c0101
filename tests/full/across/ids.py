"""Many identical starts at once, from several processes: one operation, whichever is first."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Sequence

from tests.full.across.parties import Party
from tests.full.across.works import Traces

CALLERS = 100
"""How many start the same at once, all processes together."""

CONFLICT = "INVALID_ARGUMENT REQUEST_ID_CONFLICT"


def bodies(count: int, others: int, draw: random.Random) -> list[str]:
    """What the callers of one process ask for: the same, but for so many."""
    texts = ["other"] * others + ["same"] * (count - others)
    draw.shuffle(texts)
    return texts


def one_round(
    parties: Sequence[Party], number: int, traces: Traces, others: int, draw: random.Random
) -> str:
    """All start with one id at once; the name that they get. ``others`` ask for something else.

    One request is the first: callers who ask for the same get its operation, others a conflict.
    """
    request_id = str(uuid.UUID(int=draw.getrandbits(128), version=4))
    shares = [len(range(one, CALLERS, len(parties))) for one in range(len(parties))]
    asked = [bodies(share, others, draw) for share in shares]
    futures = [
        party.ask(
            "starts",
            method="work",
            request_id=request_id.upper() if draw.random() < 0.5 else request_id,
            texts=texts,
            number=number,
            traces=str(traces.path),
            steps=0,
            step=0,
            stopping=0,
        )
        for party, texts in zip(parties, asked, strict=True)
    ]
    answers = [
        (text, answer)
        for texts, future in zip(asked, futures, strict=True)
        for text, answer in zip(texts, future.result(120), strict=True)
    ]
    winners: set[tuple[str, str]] = {
        (text, answer) for text, answer in answers if answer != CONFLICT
    }
    assert len(winners) == 1, f"round {number}: {winners}"
    ((first, name),) = winners
    wrong = [text for text, answer in answers if (text == first) != (answer == name)]
    assert not wrong, f"round {number}: {wrong} although {first!r} was the first"
    return name


def identical_starts(
    parties: Sequence[Party], rounds: int, traces: Traces, seed: int = 0
) -> Counter[str]:
    """So many rounds; every other one has callers who ask for something else.

    What became of it: starts asked, operations, conflicts' rounds, and how often work was done.
    """
    draw = random.Random(seed)
    before = parties[0].do("count")
    names = [one_round(parties, number, traces, number % 2 * 3, draw) for number in range(rounds)]
    for name in names:
        seen = parties[-1].do("wait", name=name)
        assert seen["state"] == "SUCCEEDED", seen
    done = [traces.begun(number) for number in range(rounds)]
    assert len(set(names)) == rounds
    assert parties[-1].do("count") - before == rounds
    assert done == [1] * rounds, "work was done more than once, or not at all"
    return Counter(starts=CALLERS * rounds, operations=rounds, runs=sum(done))
