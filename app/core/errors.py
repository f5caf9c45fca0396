"""Everything that can go wrong, as one tree with words for people and codes for programs.

Raised everywhere; translated once to HTTP (`router/wire.py`) and once to a dialog (`ui`).

CoolheadError
├── SettingsInvalid          a value or file of the user's is wrong
├── RoutesInvalid            routes.yaml is wrong
├── ModelError
│   ├── ModelUnknown         no model of that name
│   ├── ModelFileMissing     the file is gone
│   ├── ModelFileInvalid     not a model, truncated, or hostile
│   └── DownloadFailed       the model could not be fetched
├── DoesNotFit               the memory plan is larger than the machine
├── WorkerError
│   ├── WorkerStartFailed    the engine did not come up
│   ├── WorkerStopped        stopped while it was in use, with the cause
│   └── EngineMissing        no engine can run this model here
├── GuardError               the guard could not be started or was lost
├── RequestError
│   ├── RequestInvalid       the client's request is malformed
│   │   ├── RequestUnsupported   neither model nor engine can do what it asks for
│   │   └── PathUnknown          nothing answers there
│   ├── RequestForbidden     Host, Origin, peer or key not allowed
│   ├── ContextExceeded      the prompt is longer than the context
│   ├── QueueFull            too many are waiting
│   ├── AdmissionClosed      paused, stopping, or memory pressure
│   └── TargetFailed         a remote target could not answer
├── EndpointError            port taken, listen address refused
├── AlreadyRunning           another Coolhead holds the lock
├── NotRunning               there is none to talk to
├── DisplayMissing           no window system to show the tray on
└── FolderUnusable           a folder of ours cannot be read or written
"""

from collections.abc import Mapping


class CoolheadError(Exception):
    """A failure that a person can understand.

    Args:
        message: one or two sentences: what happened, with the numbers, and what to do next.
        details: figures for programs, JSON-able.
    """

    title = "Something went wrong"
    code = "internal_error"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, object] = details


class SettingsInvalid(CoolheadError):
    title = "A setting is wrong"
    code = "settings_invalid"


class RoutesInvalid(CoolheadError):
    """Carries `problems` in its details: file, line and key path of each."""

    title = "The routing rules are wrong"
    code = "routes_invalid"


class ModelError(CoolheadError):
    title = "The model cannot be used"
    code = "model_error"


class ModelUnknown(ModelError):
    title = "No such model"
    code = "model_not_found"


class ModelFileMissing(ModelError):
    title = "The model file is gone"
    code = "model_file_missing"


class ModelFileInvalid(ModelError):
    """Carries `path`, `offset` (bytes) and `reason` in its details."""

    title = "The model file is damaged"
    code = "model_file_invalid"


class DownloadFailed(ModelError):
    title = "The model could not be downloaded"
    code = "download_failed"


class DoesNotFit(CoolheadError):
    """Carries `needed_bytes`, `available_bytes`, `reserve_bytes` and `device` in its details.

    With `is_permanent` it would not fit in an otherwise empty machine either.
    """

    title = "This does not fit into memory"
    code = "does_not_fit"


class WorkerError(CoolheadError):
    title = "The engine failed"
    code = "worker_error"


class WorkerStartFailed(WorkerError):
    title = "The engine did not start"
    code = "worker_start_failed"


class WorkerStopped(WorkerError):
    """Carries `cause` (an `ExitCause` value) and `retry_after_s` in its details."""

    title = "The engine was stopped"
    code = "worker_stopped"


class EngineMissing(WorkerError):
    title = "No engine for this model"
    code = "engine_missing"


class GuardError(CoolheadError):
    title = "The guard is not running"
    code = "guard_error"


class RequestError(CoolheadError):
    title = "The request was refused"
    code = "request_error"


class RequestInvalid(RequestError):
    title = "The request is malformed"
    code = "invalid_request"


class RequestUnsupported(RequestInvalid):
    title = "This cannot be done here"
    code = "not_supported"


class PathUnknown(RequestInvalid):
    title = "There is no such path"
    code = "not_found"


class RequestForbidden(RequestError):
    title = "The request is not allowed"
    code = "forbidden"


class ContextExceeded(RequestError):
    """Carries `context_tokens` and `prompt_tokens` in its details."""

    title = "The prompt is too long"
    code = "context_length_exceeded"


class QueueFull(RequestError):
    """Carries `retry_after_s` in its details."""

    title = "Too many requests are waiting"
    code = "queue_full"


class AdmissionClosed(RequestError):
    """Carries `retry_after_s` in its details."""

    title = "No new requests are taken"
    code = "admission_closed"


class TargetFailed(RequestError):
    title = "The remote endpoint failed"
    code = "target_failed"


class EndpointError(CoolheadError):
    title = "The endpoint cannot be opened"
    code = "endpoint_error"


class AlreadyRunning(CoolheadError):
    title = "Coolhead is already running"
    code = "already_running"


class NotRunning(CoolheadError):
    title = "Coolhead is not running"
    code = "not_running"


class DisplayMissing(CoolheadError):
    title = "There is no display"
    code = "display_missing"


class FolderUnusable(CoolheadError):
    title = "A folder cannot be used"
    code = "folder_unusable"
