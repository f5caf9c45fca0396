import json

from app.core.router.response_cache import KeptAnswer, ResponseCache, cache_key


def answer(size: int = 10, until_s: float = 100.0) -> KeptAnswer:
    return KeptAnswer(b"x" * size, b"application/json", False, until_s)


def test_response_cache_order_spacing_and_our_fields_do_not_matter() -> None:
    one = json.dumps({"model": "m", "messages": [], "temperature": 0}).encode()
    two = json.dumps({"temperature": 0, "tags": ["x"], "messages": [], "model": "m"}, indent=1)
    assert cache_key("t", "/p", one) == cache_key("t", "/p", two.encode())
    other = json.dumps({"model": "m", "messages": [], "temperature": 1}).encode()
    assert cache_key("t", "/p", one) != cache_key("t", "/p", other)
    stream = json.dumps({"model": "m", "messages": [], "temperature": 0, "stream": True}).encode()
    assert cache_key("t", "/p", one) != cache_key("t", "/p", stream)
    counted = json.dumps(json.loads(stream) | {"stream_options": {"include_usage": True}}).encode()
    assert cache_key("t", "/p", stream) != cache_key("t", "/p", counted)
    assert cache_key("t", "/p", one) != cache_key("u", "/p", one)


def test_response_cache_entry_ends_with_its_time() -> None:
    cache = ResponseCache()
    cache.put(b"a", answer())
    assert cache.get(b"a", 99.0) is not None
    assert cache.get(b"a", 100.0) is None
    assert (cache.hits, cache.misses, cache.size_bytes) == (1, 1, 0)


def test_response_cache_least_recently_used_goes_when_the_bytes_are_full() -> None:
    cache = ResponseCache(100)
    for name in (b"a", b"b", b"c", b"d"):
        cache.put(name, answer(25))
    assert cache.get(b"a", 0.0) is not None
    cache.put(b"e", answer(25))
    assert cache.get(b"b", 0.0) is None
    assert cache.get(b"a", 0.0) is not None
    assert cache.size_bytes == 100
    cache.put(b"f", answer(26))
    assert cache.get(b"f", 0.0) is None
