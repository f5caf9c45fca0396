"""Who may ask: Host, Origin, content type, key, admin token and peer, all exact. Pure.

Asked by `http.py` once a request's headers are in, before its body is read.
"""

from dataclasses import dataclass

from app.core.errors import CoolheadError

ADMIN_PREFIX = "/admin/"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What is let in.

    Attributes:
        port: of the endpoint; part of the allowed Host values.
        api_key: asked of every client when set (`Authorization: Bearer` or `x-api-key`).
        admin_token: asked for everything below `/admin/`.
        allowed_origins: exact origins of web pages that may call.
    """

    port: int = 0
    api_key: str = ""
    admin_token: str = ""
    allowed_origins: frozenset[str] = frozenset()

    def refusal(
        self, method: str, path: str, headers: list[tuple[bytes, bytes]], peer: str
    ) -> CoolheadError | None:
        """Why the request is refused, or None when it may pass."""
        raise NotImplementedError
