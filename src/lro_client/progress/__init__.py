"""Show progress to people: read it from metadata, estimate the end, and draw a bar.

:func:`progress_of` reads common fields of metadata, :class:`Estimate` estimates the seconds left,
and :func:`show_rich` and :func:`show_tqdm` draw a bar while they wait. Only the bars need the extra
``progress``.
"""

from lro_client.progress._bars import Estimate, RichBar, TqdmBar, show_rich, show_tqdm
from lro_client.progress._reading import Progress, ProgressOf, create_time_of, progress_of

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
