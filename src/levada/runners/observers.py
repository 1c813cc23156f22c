"""The instruments of a run, by what they observe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, get_args

from levada.flow.events import Event, Instrument

EVENTS: Final[tuple[type, ...]] = get_args(Event)
"""All classes of events."""


def observed_types(instrument: object) -> frozenset[type]:
    """Return the classes of the events that an instrument receives: its class attribute `event_types`, or all.

    Raises:
        TypeError: the attribute is not a collection of such classes.
    """
    name = type(instrument).__qualname__
    if "event_types" in getattr(instrument, "__dict__", {}):
        msg = f"event_types is set on an object of {name}, expected an attribute of its class, or none for all events"
        raise TypeError(msg)
    given = getattr(type(instrument), "event_types", None)  # of the class: objects may answer to any name
    if given is None:
        return frozenset(EVENTS)
    if isinstance(given, Collection) and not isinstance(given, str | bytes) and all(each in EVENTS for each in given):
        return frozenset(given)
    names = ", ".join(each.__name__ for each in EVENTS)
    msg = (
        f"{name}.event_types is {given!r}, expected an attribute of the class, with a collection of classes such as {{Fired}}; "
        f"there are {names}"
    )
    raise TypeError(msg)


class Observers:
    """Finds the instruments that an event is shown to.

    >>> from levada.flow.events import Fired, Published
    >>> class Versions:
    ...     event_types = {Published}
    ...     def on_event(self, event: Event) -> None: ...
    >>> observers = Observers([Versions()])
    >>> len(observers.of(Published("weights", 1))), len(observers.of(Fired("rollout", 0, 1, 0.0, 0.0)))
    (1, 0)

    Raises:
        TypeError: the `event_types` of an instrument are no classes of events.
    """

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self.instruments: tuple[Instrument, ...] = tuple(instruments)
        wanted = [(each.on_event, observed_types(each)) for each in self.instruments]
        self._of: dict[type, list[Callable[[Event], None]]] = {
            kind: [on_event for on_event, kinds in wanted if kind in kinds] for kind in EVENTS
        }

    def of(self, event: Event) -> list[Callable[[Event], None]]:
        """Return their methods `on_event`, in the order of the instruments."""
        return self._of[type(event)]
