# SPDX-License-Identifier: Apache-2.0
"""The base of all reports. Only reports are pydantic models, because only reports are JSON."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

__all__ = ["FrozenModel"]


class FrozenModel(BaseModel):
    """An immutable, strictly validated part of a report."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True
    )
