"""The instruments of a run, by what they observe."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from levada.flow.events import Event, Instrument


class Observers:
    """Finds the instruments that an event is shown to.

    >>> from levada.flow.events import Fired, Published
    >>> class Versions:
    ...     event_types = {Published}
    ...     def on_event(self, event: Event) -> None: ...
    >>> observers = Observers([Versions()])
    >>> len(observers.of(Published("weights", 1))), len(observers.of(Fired("rollout", 0, 1, 0.0, 0.0)))
    (1, 0)
    """

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self.instruments: tuple[Instrument, ...] = tuple(instruments)
        self._found: dict[type[Event], list[Callable[[Event], None]]] = {}

    def of(self, event: Event) -> list[Callable[[Event], None]]:
        """Return their methods `on_event`, in the order of the instruments."""
        kind = type(event)
        found = self._found.get(kind)
        if found is None:
            wanting = [each for each in self.instruments if kind in getattr(each, "event_types", (kind,))]
            found = self._found[kind] = [each.on_event for each in wanting]
        return found
