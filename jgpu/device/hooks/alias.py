"""Classes that stand before a class of torch: `torch.Generator`, `torch.Stream`, `torch.Event`.

Calling one makes the device's kind or torch's own; `isinstance` and `issubclass` answer for all of
them, and a class derived from one derives from torch's own. Torch's classes are C types, whose
methods cannot be replaced in place.
"""

from typing import Any

from jgpu.device.tracebacks import unseen

__all__ = ["Alias"]


class Alias(type):
    """Metaclass: `make` is what calling the class does, `of` are the classes it stands for."""

    _of: tuple[type, ...]

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], of: tuple[type, ...] = ()
    ) -> Any:
        if not of:
            real = tuple(base._of[0] if isinstance(base, Alias) else base for base in bases)
            return type(real[0])(name, real, body)
        made = super().__new__(cls, name, bases, body)
        made._of = of
        made.__module__ = "torch"
        made.__name__ = made.__qualname__ = of[0].__name__
        return made

    def __init__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], of: tuple[type, ...] = ()
    ) -> None:
        super().__init__(name, bases, body)

    @unseen
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._of)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls._of)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._of[0], name)
