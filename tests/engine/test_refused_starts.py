"""The code that a refused start is counted under, where the error itself cannot say it."""

import pytest

from lro import LroError
from lro._engine.events import code_name


class Speechless(LroError):
    """An error of an application whose code cannot be read."""

    raised: type[BaseException] = ValueError

    @property
    def status_code(self) -> int:
        raise self.raised


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_error_that_cannot_say_its_code_counts_as_internal(raised: type[BaseException]) -> None:
    error = Speechless()
    error.raised = raised
    assert code_name(error) == "INTERNAL"


def test_ctrl_c_while_an_error_says_its_code_passes() -> None:
    error = Speechless()
    error.raised = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        code_name(error)
