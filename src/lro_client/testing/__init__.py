"""For tests of what uses the client: hours of an operation in milliseconds, and servers that fail.

A :class:`ScriptedServer` answers as a test says, in memory, on a :class:`VirtualClock` that only
moves while somebody waits.
"""

from lro_client.testing._clock import VirtualClock
from lro_client.testing._script import Fault, ServerCall
from lro_client.testing._server import ScriptedServer
from lro_client.testing._verbs import UnscriptedCall

__all__ = ["Fault", "ScriptedServer", "ServerCall", "UnscriptedCall", "VirtualClock"]
