"""Progress for people: read it from metadata, estimate the end, draw it.

:func:`progress_of` reads the metadata that services commonly have, :class:`Estimate` gives the
seconds that are left, :func:`show_rich` and :func:`show_tqdm` draw a bar while they wait. Only
drawing needs the extra ``progress``.
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
