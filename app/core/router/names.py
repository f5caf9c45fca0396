"""Which model a name means: an installed one, or `auto` for the default. Used by the dispatcher."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from app.core.errors import ModelUnknown
from app.core.models.spec import ModelSpec
from app.core.router.decision import AUTO


class Library(Protocol):
    """Blocking, from any thread."""

    def specs(self) -> tuple[ModelSpec, ...]: ...
    def find(self, model_id: str) -> ModelSpec: ...


class Names:
    """Thread: core loop only; the library is asked in an executor.

    Args:
        library: the installed models.
        default: the user's default model, empty for the first installed one.
        is_loaded: whether a model id is loaded now, so that its file need not be looked for.
    """

    def __init__(
        self, library: Library, default: Callable[[], str], is_loaded: Callable[[str], bool]
    ) -> None:
        self._library = library
        self._default = default
        self._is_loaded = is_loaded
        self._last = ""  # what `auto` meant last

    def known(self, name: str) -> str:
        """The model's id where it is loaded and called by it; else empty, and `resolve` finds out."""
        return name if self._is_loaded(name) else ""

    async def resolve(self, name: str) -> str:
        """The model's id.

        Raises:
            ModelUnknown: with the list of those there are.
            ModelError: its file is damaged.
        """
        if self._is_loaded(name):
            return name
        if not name or name == AUTO:
            name = self._default()
            if not name:
                return await self._first()
        wanted = canonical(name)
        if self._is_loaded(wanted):
            return wanted
        spec = await asyncio.to_thread(self._library.find, name)
        return spec.model_id

    async def _first(self) -> str:
        if self._last and self._is_loaded(self._last):
            return self._last
        specs = await self.specs()
        if not specs:
            raise ModelUnknown(
                "No model is installed. `coolhead ask` fetches a small one to start with, or put a "
                "GGUF file into the models folder.",
                models=[],
            )
        loaded = (spec.model_id for spec in specs if self._is_loaded(spec.model_id))
        self._last = next(loaded, specs[0].model_id)
        return self._last

    async def specs(self) -> tuple[ModelSpec, ...]:
        return await asyncio.to_thread(self._library.specs)


def canonical(name: str) -> str:
    """A model's name as its id is written: capitals and ".gguf" do not matter."""
    return name.strip().lower().removesuffix(".gguf")
