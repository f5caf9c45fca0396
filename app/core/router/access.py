"""Who may ask: Host, Origin, content type, key, admin token and peer, all exact. Pure.

Asked by `http.py` once a request's headers are in, before its body is read. A web page can send
requests to loopback: it is kept out by its Origin, by the Host of a rebound name, and by the content
types that need no preflight.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.errors import CoolheadError, RequestForbidden, RequestInvalid

ADMIN_PREFIX = "/admin/"
OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""Answered without the API key."""

_LOOPBACK = frozenset({"127.0.0.1", "::1"})
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_CORS_METHODS = b"GET, POST, OPTIONS"
_CORS_HEADERS = b"authorization, content-type, x-api-key"


@dataclass(frozen=True, slots=True)
class Access:
    """What the rules say to one request.

    Attributes:
        error: why it is refused; None when it may pass.
        headers: to be added to the answer (CORS, for an allowed origin).
        is_admin: it carried the admin token.
        is_preflight: to be answered with 204 and `headers`, nothing else.
    """

    error: CoolheadError | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_admin: bool = False
    is_preflight: bool = False


_PASSED = Access()
_PASSED_ADMIN = Access(is_admin=True)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What is let in.

    Attributes:
        port: of the endpoint; part of the allowed Host values.
        api_key: asked of every client when set (`Authorization: Bearer` or `x-api-key`); the admin
            token does as well, so that our own command line needs no other.
        admin_token: asked for everything below `/admin/`; without one nothing there is answered.
        allowed_origins: exact origins of web pages that may call.
    """

    port: int = 0
    api_key: str = ""
    admin_token: str = ""
    allowed_origins: frozenset[str] = frozenset()
    _hosts: frozenset[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        hosts = {f"{name}:{self.port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}
        if self.port == 80:
            hosts |= {b"127.0.0.1", b"localhost", b"[::1]"}
        object.__setattr__(self, "_hosts", frozenset(hosts))

    def judge(
        self, method: str, path: str, fields: Mapping[bytes, bytes], peer: str, *, hosts: int = 1
    ) -> Access:
        """Whether a request may pass; looks at nothing but what it is given.

        Args:
            method: `GET`, `POST` ...
            path: without the query.
            fields: headers by lower-case name; of repeated ones the last.
            peer: the client's address.
            hosts: how many Host headers there were.
        """
        get = fields.get
        host = get(b"host", b"")
        origin = get(b"origin", b"")
        site = get(b"sec-fetch-site", b"")
        if peer not in _LOOPBACK:
            return _forbidden("Only programs on this machine may ask.")
        if hosts != 1 or (host not in self._hosts and host.lower() not in self._hosts):
            return _forbidden(
                f"The Host header must be 127.0.0.1:{self.port}, localhost:{self.port} or "
                f"[::1]:{self.port}."
            )
        if origin or site:
            passed = self._judge_page(method, origin, site, fields)
            if passed.error is not None or passed.is_preflight:
                return passed
        else:
            passed = _PASSED
        if (
            method in _BODY_METHODS
            and (get(b"content-length", b"0") != b"0" or b"transfer-encoding" in fields)
            and not is_json(get(b"content-type", b""))
        ):
            return Access(
                RequestInvalid(
                    "The body must be JSON: send the header Content-Type: application/json.",
                    status=415,
                )
            )
        if path.startswith(ADMIN_PREFIX):
            if self.admin_token and _is_same(_bearer(fields), self.admin_token):
                return _PASSED_ADMIN
            return _unauthorized("The admin token is missing or wrong.")
        if (
            self.api_key
            and path not in OPEN_PATHS
            and not _is_same(_bearer(fields), self.api_key)
            and not _is_same(get(b"x-api-key", b""), self.api_key)
            and not (self.admin_token and _is_same(_bearer(fields), self.admin_token))
        ):
            return _unauthorized("The API key is missing or wrong.")
        return passed

    def _judge_page(
        self, method: str, origin: bytes, site: bytes, fields: Mapping[bytes, bytes]
    ) -> Access:
        if not origin:
            if site in {b"none", b"same-origin"}:
                return _PASSED
            return _forbidden("Web pages may not ask; no origin is allowed by default.")
        if origin.decode("latin-1") not in self.allowed_origins:
            return _forbidden(
                "This web origin is not allowed; name it in the setting server.allowed_origins."
            )
        headers = ((b"access-control-allow-origin", origin), (b"vary", b"Origin"))
        if method != "OPTIONS":
            return Access(headers=headers)
        # SDKs in a page send many headers of their own; an allowed origin may send any.
        names = fields.get(b"access-control-request-headers", _CORS_HEADERS)
        return Access(
            headers=(
                *headers,
                (b"access-control-allow-methods", _CORS_METHODS),
                (b"access-control-allow-headers", names),
                (b"access-control-max-age", b"600"),
            ),
            is_preflight=True,
        )


def is_json(content_type: bytes) -> bool:
    """Whether a content type is JSON, with or without parameters."""
    if content_type == b"application/json":
        return True
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def _bearer(fields: Mapping[bytes, bytes]) -> bytes:
    value = fields.get(b"authorization", b"")
    return value[7:].strip() if value[:7].lower() == b"bearer " else b""


def _is_same(given: bytes, wanted: str) -> bool:
    return hmac.compare_digest(given, wanted.encode())


def _forbidden(text: str) -> Access:
    return Access(RequestForbidden(text))


def _unauthorized(text: str) -> Access:
    return Access(RequestForbidden(text, status=401))
