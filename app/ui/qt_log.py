"""Qt's own messages and exceptions in slots, into our log. Thread: GUI; installed by `application.py`."""

import logging
import sys
from collections.abc import Callable
from types import TracebackType

from PySide6.QtCore import QMessageLogContext, QtMsgType, qInstallMessageHandler

_log = logging.getLogger(__name__)
_qt_log = logging.getLogger("qt")

_LEVELS = {
    QtMsgType.QtDebugMsg: logging.DEBUG,
    QtMsgType.QtInfoMsg: logging.INFO,
    QtMsgType.QtWarningMsg: logging.WARNING,
    QtMsgType.QtCriticalMsg: logging.ERROR,
    QtMsgType.QtFatalMsg: logging.CRITICAL,
}


def _on_message(kind: QtMsgType, context: QMessageLogContext, text: str) -> None:
    category = context.category or "default"
    _qt_log.log(_LEVELS.get(kind, logging.WARNING), "%s: %s", category, text)


def _on_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """One of the four places that catch everything: the window goes on, the log has the reason."""
    _log.error("an exception reached Qt; going on", exc_info=(kind, error, trace))


def capture() -> Callable[[], None]:
    """Takes over both; the returned function gives them back."""
    before = sys.excepthook
    sys.excepthook = _on_exception
    qInstallMessageHandler(_on_message)

    def give_back() -> None:
        sys.excepthook = before
        qInstallMessageHandler(None)

    return give_back
