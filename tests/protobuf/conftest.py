"""Without protobuf there is nothing to test here."""

import pytest

pytest.importorskip("google.longrunning.operations_proto_pb2")
