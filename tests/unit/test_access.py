"""Access rules: what a local program may do, and what a web page may not."""

import pytest

from app.core.errors import CoolheadError
from app.core.router.access import AccessRules, is_json
from app.core.router.wire import status_of

HOST = (b"host", b"127.0.0.1:8555")
JSON = (b"content-type", b"application/json")
LENGTH = (b"content-length", b"2")
RULES = AccessRules(port=8555, admin_token="secret")


def refusal(
    *headers: tuple[bytes, bytes],
    rules: AccessRules = RULES,
    method: str = "GET",
    path: str = "/v1/models",
    peer: str = "127.0.0.1",
) -> CoolheadError | None:
    hosts = [name for name, _ in headers].count(b"host")
    return rules.judge(method, path, dict(headers), peer, hosts=hosts).error


@pytest.mark.parametrize(
    "host", [b"127.0.0.1:8555", b"localhost:8555", b"[::1]:8555", b"LocalHost:8555"]
)
def test_host_that_is_ours_passes(host: bytes) -> None:
    assert refusal((b"host", host)) is None


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example:8555",
        b"127.0.0.1",
        b"127.0.0.1:80",
        b"localhost:8555.evil.example",
        b"127.0.0.1:8555@evil.example",
        b"127.0.0.2:8555",
        b"0.0.0.0:8555",
        b"",
        b"localhost:85550",
    ],
)
def test_host_of_a_rebound_name_is_refused(host: bytes) -> None:
    error = refusal((b"host", host))
    assert error is not None
    assert status_of(error) == 403
    assert "8555" in error.message


def test_host_missing_or_twice_is_refused() -> None:
    assert refusal() is not None
    assert refusal(HOST, HOST) is not None


def test_port_80_allows_hosts_without_a_port() -> None:
    assert refusal((b"host", b"localhost"), rules=AccessRules(port=80)) is None


@pytest.mark.parametrize("peer", ["10.0.0.3", "192.168.1.2", "", "fe80::1", "127.0.0.2"])
def test_peer_from_elsewhere_is_refused(peer: str) -> None:
    assert refusal(HOST, peer=peer) is not None


@pytest.mark.parametrize(
    "origin", [b"https://evil.example", b"null", b"http://127.0.0.1:8555", b"file://", b"\xff"]
)
def test_origin_is_refused_unless_named(origin: bytes) -> None:
    assert refusal(HOST, (b"origin", origin)) is not None


def test_origin_must_match_exactly_and_gets_cors_headers() -> None:
    rules = AccessRules(port=8555, allowed_origins=frozenset({"https://ui.example"}))
    passed = rules.judge(
        "GET", "/v1/models", dict([HOST, (b"origin", b"https://ui.example")]), "::1"
    )
    assert passed.error is None
    assert (b"access-control-allow-origin", b"https://ui.example") in passed.headers
    assert not passed.is_preflight
    for near in (b"https://ui.example.evil", b"http://ui.example", b"https://UI.example"):
        assert refusal(HOST, (b"origin", near), rules=rules) is not None


def test_preflight_is_answered_for_an_allowed_origin_only() -> None:
    rules = AccessRules(port=8555, api_key="k", allowed_origins=frozenset({"https://ui.example"}))
    asked = [
        HOST,
        (b"origin", b"https://ui.example"),
        (b"access-control-request-headers", b"x-stainless-os"),
    ]
    passed = rules.judge("OPTIONS", "/v1/models", dict(asked), "127.0.0.1")
    assert passed.is_preflight
    assert (b"access-control-allow-headers", b"x-stainless-os") in passed.headers
    denied = rules.judge(
        "OPTIONS", "/x", dict([HOST, (b"origin", b"https://no.example")]), "127.0.0.1"
    )
    assert denied.error is not None
    assert not denied.is_preflight


def test_browser_request_without_origin_is_refused_by_its_fetch_site() -> None:
    assert refusal(HOST, (b"sec-fetch-site", b"cross-site")) is not None
    assert refusal(HOST, (b"sec-fetch-site", b"same-site")) is not None
    assert refusal(HOST, (b"sec-fetch-site", b"none")) is None


@pytest.mark.parametrize(
    "kind", [b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"]
)
def test_post_that_is_not_json_is_refused(kind: bytes) -> None:
    error = refusal(HOST, LENGTH, (b"content-type", kind), method="POST")
    assert error is not None
    assert status_of(error) == 415


def test_post_of_json_passes_and_so_does_one_without_a_body() -> None:
    assert refusal(HOST, LENGTH, JSON, method="POST") is None
    assert refusal(HOST, (b"content-length", b"0"), method="POST") is None
    assert refusal(HOST, (b"transfer-encoding", b"chunked"), method="POST") is not None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/vnd.api+json", True),
        (b"application/jsonp", False),
        (b"text/json", False),
        (b"text/plain; application/json", False),
    ],
)
def test_is_json_reads_the_type_alone(kind: bytes, expected: bool) -> None:
    assert is_json(kind) is expected


@pytest.mark.parametrize(
    ("header", "passes"),
    [
        ((b"authorization", b"Bearer k1"), True),
        ((b"authorization", b"bearer  k1"), True),
        ((b"x-api-key", b"k1"), True),
        ((b"authorization", b"Bearer k2"), False),
        ((b"authorization", b"Basic k1"), False),
        ((b"x-api-key", b"k1\xc3"), False),
        ((b"x-api-key", b""), False),
        ((b"x-other", b"k1"), False),
    ],
)
def test_key_when_set_is_asked_for(header: tuple[bytes, bytes], passes: bool) -> None:
    error = refusal(HOST, header, rules=AccessRules(port=8555, api_key="k1"))
    assert (error is None) is passes
    if error is not None:
        assert status_of(error) == 401
        assert "k1" not in error.message


def test_health_is_answered_without_a_key() -> None:
    assert refusal(HOST, rules=AccessRules(port=8555, api_key="k1"), path="/health") is None


def test_admin_path_asks_for_the_token_and_marks_the_request() -> None:
    bearer = (b"authorization", b"Bearer secret")
    passed = RULES.judge("POST", "/admin/stop", dict([HOST, bearer]), "127.0.0.1")
    assert passed.error is None
    assert passed.is_admin
    assert refusal(HOST, path="/admin/status") is not None
    assert refusal(HOST, (b"x-api-key", b"secret"), path="/admin/status") is not None
    assert not RULES.judge("GET", "/v1/models", dict([HOST, bearer]), "127.0.0.1").is_admin


def test_admin_path_without_a_token_set_is_closed() -> None:
    rules = AccessRules(port=8555)
    assert refusal(HOST, (b"authorization", b"Bearer "), rules=rules, path="/admin/x") is not None
