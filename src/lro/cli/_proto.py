"""``lro proto``: a Python service as ``.proto`` files, for clients in other languages."""

from __future__ import annotations

from pathlib import Path

import click

from lro._base.errors import InvalidArgument
from lro.cli._inputs import read_service


@click.command()
@click.argument("service")
@click.option("--out", metavar="FOLDER", help="Write the files there, under their own names.")
@click.option(
    "--descriptor-set", metavar="FILE", help="Write a FileDescriptorSet, imports and all."
)
def proto(service: str, out: str | None, descriptor_set: str | None) -> None:
    """Print the proto files of a service: its messages, its methods, and their types.

    SERVICE is module:service. The files import those of googleapis (google/longrunning,
    google/api, google/rpc) and of protobuf.
    """
    found = read_service(service)
    from lro import protobuf  # needs an extra

    sources = protobuf.proto_sources(found)
    if descriptor_set is not None:
        _write(Path(descriptor_set), protobuf.descriptor_set(found))
    for name, text in sources.items():
        if out is None and descriptor_set is None:
            click.echo(f"// {name}\n\n{text}" if len(sources) > 1 else text, nl=False)
        elif out is not None:
            _write(Path(out) / name, text.encode())
            click.echo(Path(out) / name)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as exc:
        raise InvalidArgument(str(path), f"cannot be written: {exc.strerror}") from exc
