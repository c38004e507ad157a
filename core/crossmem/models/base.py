# SPDX-License-Identifier: Apache-2.0
"""The one pydantic configuration of all models."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

__all__ = ["FrozenModel"]


class FrozenModel(BaseModel):
    """An immutable, strictly validated value that crosses a process or plugin boundary."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True
    )
