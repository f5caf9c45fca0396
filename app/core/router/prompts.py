"""Templates of rules, compiled once for each state of their file. Used by the dispatcher, core loop."""

from pathlib import Path

from app.core.errors import RoutesInvalid
from app.core.router.features import RequestFeatures
from app.core.router.templates import PromptTemplate, TemplateBrokenError


class Prompts:
    """Thread: core loop only. A template is a small local file: reading it is no wait."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[float, PromptTemplate]] = {}

    def get(self, path: Path) -> PromptTemplate:
        """Raises: RoutesInvalid when the file cannot be used."""
        try:
            changed_s = path.stat().st_mtime
            known = self._known.get(path)
            if known is None or known[0] != changed_s:
                known = self._known[path] = (changed_s, PromptTemplate.read(path))
            return known[1]
        except OSError as error:
            raise RoutesInvalid(f"The template {path} cannot be read: {error.strerror}.") from error
        except TemplateBrokenError as error:
            raise RoutesInvalid(f"The template {path} {error.text} (line {error.line}).") from error

    def render(self, path: Path, features: RequestFeatures) -> str:
        """A system prompt; it may name model, tags, session, path and the user's last text."""
        return self.get(path).render(
            {
                "model": features.model,
                "tags": list(features.tags),
                "session": features.session,
                "path": features.path,
                "last_user": features.last_user,
            }
        )
