"""What `bus.url` may say."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.redis_address import Address, parse_url

SECRET = "planted-marker"


@pytest.mark.parametrize(
    ("url", "address", "text"),
    [
        ("redis://host", Address(host="host"), "redis://host:6379/0"),
        ("redis://host:7/", Address(host="host", port=7), "redis://host:7/0"),
        ("redis://10.0.0.1:7/3", Address(host="10.0.0.1", port=7, database=3), "redis://10.0.0.1:7/3"),
        ("rediss://host:7", Address(host="host", port=7, tls=True), "rediss://host:7/0"),
        ("rediss://[::1]:7", Address(host="::1", port=7, tls=True), "rediss://[::1]:7/0"),
        ("unix:///run/redis.sock", Address(path="/run/redis.sock"), "unix:///run/redis.sock"),
        ("unix:///run/a%20b@c", Address(path="/run/a b@c"), "unix:///run/a b@c"),
    ],
)
def test_addresses(url, address, text):
    assert parse_url(url) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host",
        f"rediss://user:{SECRET}@host:6379/0",
        f"redis://user:{SECRET}/with?odd#signs@host",
        f"redis://user:{SECRET}@@host",
        f"redis://host:6379?password={SECRET}",
        f"redis://host:6379/0?db=1&PASSWORD={SECRET}",
        f"unix://user:{SECRET}@/run/redis.sock",
        f"unix:///run/redis.sock?password={SECRET}",
        f"user:{SECRET}@host:6379",
        f"http://user:{SECRET}@host",
        f"REDIS://user:{SECRET}@host",
    ],
)
def test_a_password_is_refused_and_not_repeated(url):
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert str(caught.value) == "bus.url: contains a password; put it into a file and name it in bus.password_file"


@pytest.mark.parametrize("url", [f"redis://{SECRET}@host", f"unix://{SECRET}@/run/redis.sock"])
def test_a_user_is_refused_and_not_repeated(url):
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert str(caught.value) == "bus.url: contains a user; name it in bus.username"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:6379",
        "http://host",
        "redis://",
        "redis:///0",
        "redis://:6379",
        "redis://host:port",
        "redis://host:99999",
        "redis://host:0",
        "redis://[::1",
        "redis://host/a",
        "redis://host/-1",
        "redis://host/0/1",
        "redis://host?ssl_cert_reqs=none",
        "rediss://host?ssl_check_hostname=false",
        "redis://host#x",
        "unix://run/redis.sock",
        "unix:///run/redis.sock?db=1",
        "unix://",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    message = str(caught.value)
    assert message.startswith("bus.url: ")
    assert ";" in message, "no remedy"
    assert "\n" not in message
