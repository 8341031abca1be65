"""What one end of a connection runs: its Python, its torch, and a hash of all aten schemas.

Programs name ops by schema, so two runtimes with equal hashes mean the same by the same program.
Builds of one release (cpu, cu128, conda's) have equal schemas; the version alone would not say so
of a build from source. Torch is an argument: nothing here imports it.
"""

import platform
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from jgpu.wire.messages import Runtime

__all__ = ["runtime_of", "schema_hash"]


def schema_hash(schemas: Iterable[str]) -> str:
    """The hash of these schemas, in any order, as hexadecimal digits."""
    text = "\n".join(sorted(schemas)).encode()
    return blake2b(text, digest_size=16, person=b"jgpu-schemas").hexdigest()


def runtime_of(torch: Any) -> Runtime:
    """The runtime of this process, whose `torch` this is; takes about 20 ms."""
    version = str(torch.__version__)
    try:
        # What the dispatcher knows comes from one file of torch's source, whatever was built.
        names = set(torch._C._dispatch_get_all_op_names())
        schemas = torch._C._jit_get_all_schemas()
    except AttributeError:
        return Runtime(platform.python_version(), version, "")
    aten = (
        str(schema)
        for schema in schemas
        if schema.name.startswith("aten::") and _full_name(schema) in names
    )
    return Runtime(platform.python_version(), version, schema_hash(aten))


def _full_name(schema: Any) -> str:
    overload = schema.overload_name
    return f"{schema.name}.{overload}" if overload else str(schema.name)
