"""The declarations of a set, as the registry that the rest of the library works with."""

from __future__ import annotations

from lro._model.method_names import OperationInfoRegistry
from lro._model.operation import OperationInfo
from lro.lint._descriptors import DescriptorSet
from lro.lint._lint import resolved_info


def operation_infos(descriptor_set: bytes) -> OperationInfoRegistry:
    """The long-running methods of a ``FileDescriptorSet``, with both types by full name.

    A method whose types are not both resolved by spec §8.3 is left out; :func:`lro.lint.lint`
    says why.

    Raises:
        InvalidArgument: The bytes are no such set.
        DeclarationError: Two files declare the same method.
    """
    files = DescriptorSet(descriptor_set)
    registry = OperationInfoRegistry()
    for rpc in files.rpcs("targets", None):
        info = resolved_info(files, rpc)
        if info is not None and info.response_type and info.metadata_type:
            # A leading dot makes the names absolute (spec §8.3(1)).
            absolute = OperationInfo("." + info.response_type, "." + info.metadata_type)
            registry.register(str(rpc.name), absolute)
    return registry
