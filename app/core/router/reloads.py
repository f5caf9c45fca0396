"""Loaded models made anew when settings change: each drains, is unloaded, and is loaded again.

Called by the composition on the core loop.
"""

import contextlib

from app.core.backends.caution import Caution
from app.core.backends.supervisor import Supervisor
from app.core.errors import CoolheadError
from app.core.lifecycle import ExitCause, WorkerState
from app.core.router.endpoint import Endpoint

DRAIN_S = 600.0


class Reloads:
    """Thread: core loop."""

    def __init__(self, supervisor: Supervisor, endpoint: Endpoint, caution: Caution) -> None:
        self._supervisor = supervisor
        self._endpoint = endpoint
        self._caution = caution

    async def reload_all(self) -> None:
        """Each loaded model drains, is unloaded, and is loaded with the new settings.

        One that is being loaded is waited for: it may have been priced with the old ones.

        Raises:
            CoolheadError: the first that stopped a load; the other models are reloaded all the same.
        """
        loaded = [
            view.model_id
            for view in self._supervisor.workers()
            if view.state in {WorkerState.STARTING, WorkerState.READY}
        ]
        if loaded:
            self._caution.allow_load()  # whoever changes settings has thought about it
        failure: CoolheadError | None = None
        for model_id in loaded:
            try:
                await self._reload_one(model_id)
            except CoolheadError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _reload_one(self, model_id: str) -> None:
        self._supervisor.forgive(model_id)
        view = self._supervisor.worker(model_id)
        if view is not None and view.state is WorkerState.STARTING:
            with contextlib.suppress(CoolheadError):
                await self._endpoint.load(model_id)
        await self._supervisor.drain(model_id, DRAIN_S)
        await self._supervisor.unload(model_id, ExitCause.UNLOADED, "new settings")
        if self._endpoint.is_open:
            await self._endpoint.load(model_id)
