# SPDX-License-Identifier: Apache-2.0
"""The base of all reports. Reports are pydantic models, which convert to JSON and back."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

__all__ = ["FrozenModel"]


class FrozenModel(BaseModel):
    """An immutable, strictly validated part of a report."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True
    )
