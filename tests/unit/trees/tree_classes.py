# SPDX-License-Identifier: Apache-2.0
"""Classes that trees are made of. Tests import this module, so its classes can be found."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from typing_extensions import override

T = TypeVar("T")

ran: list[str] = []
"""What code of these classes has run: none may, while a tree is read."""


@dataclass
class Plain:
    weight: Any
    bias: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    weight: Any
    steps: int = 0


@dataclass(frozen=True, slots=True)
class SlotsBelow(Frozen):
    more: Any = None


class WithSlot:
    __slots__ = ("label",)
    label: Any


@dataclass(slots=True)
class SlotAbove(WithSlot):
    weight: Any


@dataclass
class Inherited(Plain):
    more: Any = None
    count: ClassVar[int] = 7


@dataclass
class Careful:
    """Has code in all places where reading could run it."""

    weight: Any

    def __new__(cls, *_args: Any) -> Self:
        ran.append("new")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        ran.append("post_init")

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        ran.append("setattr")
        super().__setattr__(name, value)

    def __setstate__(self, state: Any) -> None:
        ran.append("setstate")

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        ran.append("reduce")
        return super().__reduce_ex__(protocol)


class Point(NamedTuple):
    x: Any
    y: Any = 3


@dataclass
class Derived(Generic[T]):
    """Has attributes beside its fields."""

    value: int

    @cached_property
    def double(self) -> int:
        return 2 * self.value


class Labelled(Point):
    """Has a place for attributes."""


class Outer:
    @dataclass
    class Inner:
        value: Any


@dataclass
class Unset:
    """Has a field that nobody sets."""

    value: Any = field(init=False)


@dataclass
class OfDict(dict[str, int]):
    """Is more than its fields."""

    value: int = 0


@dataclass
class Abstract(ABC):
    value: int = 0

    @abstractmethod
    def act(self) -> None: ...


class _Computed:
    def __get__(self, instance: Any, owner: Any) -> int:
        return 1

    def __set__(self, instance: Any, value: Any) -> None:
        ran.append("descriptor")


@dataclass
class WithDescriptor:
    value: int = _Computed()  # type: ignore[assignment]


ended: list[Any] = []
"""Values of the objects that ran code at their end."""


@dataclass
class Ending:
    value: Any = None

    def __del__(self) -> None:
        ended.append(self.value)


def make_local() -> Callable[[], Any]:
    @dataclass
    class Local:
        value: int = 0

    return Local


class Impostor(NamedTuple):
    """Says that it is another class."""

    x: Any
    y: Any


Impostor.__qualname__ = "Point"
