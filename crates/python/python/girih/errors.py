"""The exceptions of girih, one class for each kind of error.

>>> import girih
>>> try:
...     girih.Model.open("./no-such-folder")
... except girih.NotFound as error:
...     print(error.kind)
not_found
"""

from __future__ import annotations


class GirihError(Exception):
    """The base of all exceptions of girih. Its text is one sentence: the thing, what was found, what was needed, what to do."""

    kind: str = "other"


class Refused(GirihError, ValueError):
    """An option or a request is wrong, or not supported."""

    kind = "refused"


class TooLong(GirihError, ValueError):
    """A prompt, or a prompt with its reply, exceeds the context."""

    kind = "too_long"


class QueueFull(GirihError):
    """The queue of requests is full; the same request may succeed later."""

    kind = "queue_full"


class WaitTooLong(GirihError, TimeoutError):
    """A request waited longer than is allowed, or was expected to; it may succeed later."""

    kind = "wait_too_long"


class Cancelled(GirihError):
    """The work was cancelled, or its time limit passed."""

    kind = "cancelled"


class NotFound(GirihError, LookupError):
    """There is no model, file, backend or device of this name."""

    kind = "not_found"


class OutOfMemory(GirihError, MemoryError):
    """Memory does not suffice."""

    kind = "out_of_memory"


class DeviceFailed(GirihError, RuntimeError):
    """The device, or the thread that drives it, failed."""

    kind = "device_failed"


class NotANumber(GirihError, ArithmeticError):
    """The model produced NaN."""

    kind = "not_a_number"


class OutOfRange(GirihError, ArithmeticError):
    """The model produced a key or value that the type of the KV cache cannot hold."""

    kind = "out_of_range"


_CLASSES: dict[str, type[GirihError]] = {
    kind.kind: kind
    for kind in (
        Refused,
        TooLong,
        QueueFull,
        WaitTooLong,
        Cancelled,
        NotFound,
        OutOfMemory,
        DeviceFailed,
        NotANumber,
        OutOfRange,
    )
}


def exception(kind: str, sentence: str) -> GirihError:
    """The exception of a kind; the native part calls it.

    >>> exception("too_long", "the prompt is too long").kind
    'too_long'
    """
    return _CLASSES.get(kind, GirihError)(sentence)
