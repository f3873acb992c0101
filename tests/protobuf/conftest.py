"""Skip the tests of this folder if protobuf is not installed."""

import pytest

pytest.importorskip("google.longrunning.operations_proto_pb2")
