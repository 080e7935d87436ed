"""What the constructors of an agent are given, judged before it is kept. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from weft.errors import WrongCall
from weft.messages import Message, clean_text

__all__ = [
    "at_least",
    "conditions",
    "deps_type",
    "history",
    "instance",
    "listed",
    "named",
    "optional",
    "permissions",
    "positive",
    "prompting",
]

T = TypeVar("T")
_NUMBER = (int, float)

_TYPE_MAKERS = frozenset({"collections.abc", "types", "typing", "typing_extensions"})
"""Where what stands for a type, and is none, comes from: a union, an alias, a generic."""
_ROLES = frozenset({"user", "assistant", "tool"})


def instance(name: str, given: object, kind: type[T]) -> T:
    """A value of this class. The name is an argument's.

    Raises:
        WrongCall: It is of another.
    """
    if not isinstance(given, kind):
        raise WrongCall(f"{name}=… is {_a(kind.__name__)}, not {_kind(given)}")
    return given


def at_least(least: float, given: object) -> bool:
    """Whether it is a number from there on."""
    return isinstance(given, _NUMBER) and given >= least


def positive(given: object) -> bool:
    """Whether it is a number above 0 that has an end."""
    return isinstance(given, _NUMBER) and 0 < given < float("inf")


def named(given: object) -> str:
    """A name.

    Raises:
        WrongCall: It is none.
    """
    name = instance("name", given, str)
    if not name.strip():
        raise WrongCall("name=… is what receipts, requests and override call the agent; give it some text")
    return name


def optional(name: str, given: object, kind: type[T]) -> T | None:
    """A value of this class, or None.

    Raises:
        WrongCall: It is of another.
    """
    return None if given is None else instance(name, given, kind)


def listed(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    """The items of a list, whatever they are.

    Raises:
        WrongCall: It is no list, such as the one item itself.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise WrongCall(f"{name}=… is a list, not {_kind(given)}; put it into brackets: {name}=[…]")
    return tuple(given)


def conditions(name: str, given: Callable[..., Any] | Iterable[Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
    """One function, or several.

    Raises:
        WrongCall: It is neither.
    """
    several = (given,) if callable(given) else listed(name, given)
    for one in several:
        if not callable(one):
            raise WrongCall(f"{name}=… is a function, or a list of functions, not of {_kind(one)}")
    return several


def prompting(given: str | Callable[..., Any] | None) -> str | Callable[..., Any] | None:
    """Instructions.

    Raises:
        WrongCall: They are neither text nor a function.
    """
    if isinstance(given, str):
        return clean_text(given)
    if given is None or callable(given):
        return given
    raise WrongCall(f"instructions=… is text, or a function of a Context, not {_kind(given)}")


def deps_type(given: Any) -> Any:
    """The type of an agent's deps, or None.

    Raises:
        WrongCall: It is a value, which a run is given.
    """
    if given is None or isinstance(given, type) or type(given).__module__ in _TYPE_MAKERS:
        return given
    kind = _kind(given)
    raise WrongCall(
        f"Agent(deps=…) is a type, not a value of {kind}: give Agent(deps={kind}), and the value to its run"
    )


def history(given: Iterable[Any]) -> Sequence[Message]:
    """Earlier messages.

    Raises:
        WrongCall: They are none, such as those of another library, or are of a role that messages do not have.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise WrongCall(f"history=… is a list of messages, such as result.messages, not {_kind(given)}")
    messages = tuple(given)
    for one in messages:
        if not isinstance(one, Message):
            raise WrongCall(f"history=… holds messages, such as result.messages, not {_kind(one)}")
        if one.role not in _ROLES:
            raise WrongCall(
                f"history=… holds no message of role {one.role!r}; what a model is to obey is Agent(instructions=…)"
            )
    return messages


def permissions(given: Iterable[str] | None) -> frozenset[str] | None:
    """What `allow=` says; None is everything.

    Raises:
        WrongCall: It is one string, whose letters are no permissions, or holds what is no text.
    """
    if isinstance(given, str):
        raise WrongCall(f"allow=… is a set of permissions: {{{given!r}}}")
    return None if given is None else frozenset(instance("allow", one, str) for one in listed("allow", given))


def _kind(given: object) -> str:
    return "None" if given is None else type(given).__name__


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}"
