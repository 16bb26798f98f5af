"""Names of types that resources are looked for by."""

from __future__ import annotations

from typing import Any


def nothing_of(rtype: object) -> list[Any]:
    """Return that there is no resource of a type. Raises UnknownTypeError where nobody registered such a type."""
    # Types are made of resources, and so is what asks here.
    from fedmon.experiment.types import ResourceFactory

    known = ResourceFactory.resource_types().values()
    # A name that only types derived from it have is a type as well.
    is_known = isinstance(rtype, type) or any(
        vars(each).get("_rtype") == rtype for rclass in known for each in rclass.__mro__
    )
    if not is_known:
        ResourceFactory.get_resource_type(rtype)  # type: ignore[arg-type] # which says so for what is no name
    return []
