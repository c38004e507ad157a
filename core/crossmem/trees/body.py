# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON of a shared tree, and checks it with pydantic.

Only readers of trees import this module, because the import of pydantic is slow.
"""

from typing import Annotated, Any, Final

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from crossmem.arrays import MAX_DIMENSIONS, Kind
from crossmem.guards import shorten

__all__ = ["Body", "read_body"]

_MAX_ARRAYS: Final = 2**20
_MAX_HANDLES: Final = 2**16
_MAX_REASONS: Final = 3

_Natural = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Body(BaseModel):
    """The fields of the JSON.

    An item of ``arrays`` describes one array. Its values are the array's library, the index of the
    array's handle, and the array's dtype, shape, strides and offset. Other modules check the tree
    and the names of the dtypes.
    """

    # If the model refused unknown keys, pydantic would create one error for each, and a text may
    # have a million unknown keys. So the model allows unknown keys, and read_body() refuses them.
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    handles: Annotated[tuple[Base64Bytes, ...], Field(max_length=_MAX_HANDLES, fail_fast=True)]
    arrays: Annotated[
        tuple[
            tuple[
                Kind,
                _Natural | None,
                str,
                Annotated[tuple[_Natural, ...], Field(max_length=MAX_DIMENSIONS, fail_fast=True)],
                Annotated[tuple[int, ...], Field(max_length=MAX_DIMENSIONS, fail_fast=True)] | None,
                _Natural,
            ],
            ...,
        ],
        Field(max_length=_MAX_ARRAYS, fail_fast=True),
    ]
    tree: Any
    timeline: Base64Bytes | None


def read_body(text: bytes) -> Body:
    """Return the fields of a JSON text.

    Raises
    ------
    ValueError
        The text is not JSON, or a field is missing, wrong or unknown. The message names at most
        three faults.
    """
    try:
        body = Body.model_validate_json(text)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        reasons = (f"{one['loc']}: {one['msg']}" for one in details[:_MAX_REASONS])
        raise ValueError("; ".join(reasons)) from None
    if body.model_extra:
        msg = f"the tree has the unknown field {shorten(next(iter(body.model_extra)))}"
        raise ValueError(msg)
    return body
