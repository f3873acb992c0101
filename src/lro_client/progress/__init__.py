"""Show progress to people: read it from metadata, estimate the end, and draw a bar.

:func:`progress_of` reads common fields of metadata, :class:`Estimate` estimates the seconds left,
and :func:`show_rich` and :func:`show_tqdm` draw a bar while they wait. Only the bars need the extra
``progress``. Without it, an import of a bar raises ``MissingExtra``.
"""

from typing import TYPE_CHECKING

from lro_client.progress import _bars
from lro_client.progress._bars import Estimate
from lro_client.progress._reading import Progress, ProgressOf, create_time_of, progress_of

if TYPE_CHECKING:
    from lro_client.progress._bars import RichBar, TqdmBar, show_rich, show_tqdm

__all__ = [
    "Estimate",
    "Progress",
    "ProgressOf",
    "RichBar",
    "TqdmBar",
    "create_time_of",
    "progress_of",
    "show_rich",
    "show_tqdm",
]

if not TYPE_CHECKING:  # if a type checker saw __getattr__, it would accept any name

    def __getattr__(name: str) -> object:
        import sys

        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules.get(__name__))
        # The error comes here, before the caller starts an operation to show it with a bar.
        _bars.check_library("tqdm" if name in ("TqdmBar", "show_tqdm") else "rich")
        found = getattr(_bars, name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
