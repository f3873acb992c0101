"""Judge any server or client of google.longrunning, in any language (AIP-151).

The command is ``lro conform``. The package uses neither the server nor the client of this project,
because it may judge them.
"""

from lro_conform._checks import Check, Citation, ConformanceReport, Level, Outcome, Verdict

__all__ = ["Check", "Citation", "ConformanceReport", "Level", "Outcome", "Verdict"]
