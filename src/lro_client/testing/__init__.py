"""Test code that uses the client: an hour's operation takes milliseconds, and calls can fail.

A :class:`ScriptedServer` follows the test's script, in memory, on a :class:`VirtualClock` whose
time passes only while the code under test waits.
"""

from lro_client.testing._clock import VirtualClock
from lro_client.testing._script import Fault, ServerCall
from lro_client.testing._server import ScriptedServer, UnscriptedCall

__all__ = ["Fault", "ScriptedServer", "ServerCall", "UnscriptedCall", "VirtualClock"]
