"""The bus side of a StatusNotifier panel, as KDE's and others': prints each icon that registers.

A program of its own (`python -m tests.ui.sni_watcher`), so that a test can kill it like a panel.
"""

import sys
from collections.abc import Callable
from typing import Any, cast

from PySide6.QtCore import ClassInfo, Property, QCoreApplication, QObject, Signal, Slot
from PySide6.QtDBus import QDBusConnection

SERVICE = "org.kde.StatusNotifierWatcher"


# The stub of ClassInfo does not know that it is a decorator.
_named = cast(
    "Callable[[type], type]", cast("Callable[..., Any]", ClassInfo)({"D-Bus Interface": SERVICE})
)


@_named
class Watcher(QObject):
    StatusNotifierItemRegistered = Signal(str)

    @Slot(str)
    def RegisterStatusNotifierItem(self, item: str) -> None:  # noqa: N802 - the bus's name
        print("icon", item, flush=True)

    @Slot(str)
    def RegisterStatusNotifierHost(self, host: str) -> None:  # noqa: N802 - the bus's name
        print("host", host, flush=True)

    IsStatusNotifierHostRegistered = Property(bool, lambda _self: True)
    ProtocolVersion = Property(int, lambda _self: 0)


def main() -> int:
    app = QCoreApplication(sys.argv)
    bus = QDBusConnection.sessionBus()
    watcher = Watcher()
    everything = QDBusConnection.RegisterOption.ExportAllContents
    bus.registerObject("/StatusNotifierWatcher", watcher, everything)
    if not bus.registerService(SERVICE):
        return 1
    return app.exec()


if __name__ == "__main__":
    sys.exit(main())
