"""The configuration: what users write, and the one line they get when it cannot work."""

from __future__ import annotations

import json

import pytest

from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.read_config import dump_config, explain, load_config, parse_config, shown_config
from swift_tiers.radix_tiering.base.units import Duration, Size, format_size


def test_nothing_at_all_is_a_configuration():
    assert load_config(None) == load_config("") == load_config({}) == TiersConfig()
    assert load_config(None).ssd.directories == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [("8GiB", 8 * 2**30), ("1.5 MiB", 3 * 2**19), ("2TB", 2 * 10**12), ("4096", 4096), (4096, 4096), ("0", 0)],
)
def test_sizes(text, value):
    assert Size.parse(text) == value


@pytest.mark.parametrize("text", ["8 gigs", "", "-1", -1, 1.5, None, True, "GiB", "1e3"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match="is not a size"):
        Size.parse(text)


@pytest.mark.parametrize(("text", "value"), [("250ms", 0.25), ("2s", 2.0), ("5min", 300.0), ("10us", 1e-5)])
def test_durations(text, value):
    assert Duration.parse(text) == pytest.approx(value)
    assert Duration.parse(str(Duration.parse(text))) == pytest.approx(value)


def test_a_duration_needs_its_unit():
    with pytest.raises(ValueError, match="is not a duration"):
        Duration.parse(5)


def test_sizes_are_shown_as_people_write_them():
    assert [format_size(count) for count in (12, 4096, 3 * 2**19, 8 * 2**30)] == ["12B", "4KiB", "1.5MiB", "8GiB"]


def test_toml_and_json_files(tmp_path):
    toml, plain = tmp_path / "tiers.toml", tmp_path / "tiers.json"
    toml.write_text('[host]\nsize = "8GiB"\n[policy]\nwrite = "back"\n')
    plain.write_text(json.dumps({"host": {"size": "8GiB"}, "policy": {"write": "back"}}))
    assert load_config(f"@{toml}") == load_config(f"@{plain}")
    assert load_config(f"@{toml}").host.size == 8 * 2**30


def test_what_is_dumped_is_read_back():
    config = parse_config(
        {"host": {"size": "1GiB"}, "policy": {"restore_deadline": "250ms"}, "ssd": {"throttle": "1GiB"}}
    )
    assert parse_config(json.loads(json.dumps(dump_config(config)))) == config


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"hots": {}}, "hots"),
        ({"host": {"sise": 1}}, "host.sise"),
        ({"host": {"size": "8 gigs"}}, "host.size"),
        ({"host": 3}, "host"),
        ({"ssd": {"directories": "/x"}}, "ssd.directories"),
        ({"ssd": {"stripe_unit": 5000}}, "ssd.stripe_unit"),
        ({"ssd": {"stripe_unit": "1GiB"}}, "ssd.stripe_unit"),
        ({"ssd": {"throttle": 5}}, "ssd.throttle"),
        ({"policy": {"write": "never"}}, "policy.write"),
        ({"policy": {"admission_uses": 0}}, "policy.admission_uses"),
        ({"policy": {"restore_deadline": 5}}, "policy.restore_deadline"),
        ({"policy": {"restore_deadline": "0s"}}, "policy.restore_deadline"),
        ({"bus": {"url": "http://host"}}, "bus.url"),
        ({"bus": {"username": "ops"}}, "bus.username"),
        ({"bus": {"password_file": "/run/password"}}, "bus.password_file"),
        ({"bus": {"password": "x"}}, "bus.password"),
        ({"bus": {"ca_file": "/ca.pem"}}, "bus.ca_file"),
        ({"bus": {"url": "redis://host", "ca_file": "/ca.pem"}}, "bus.ca_file"),
        ({"bus": {"url": "redis://host", "certificate_file": "/own.pem"}}, "bus.certificate_file"),
        ({"bus": {"url": "unix:///run/redis.sock", "key_file": "/own.key"}}, "bus.key_file"),
        ({"bus": {"url": "rediss://host", "key_file": "/own.key"}}, "bus.key_file"),
        ({"bus": {"url": "redis://host", "directory": "/run/bus"}}, "bus.directory"),
        ({"bus": {"prefix": ""}}, "bus.prefix"),
        ({"bus": {"prefix": "a*"}}, "bus.prefix"),
        ({"bus": {"server": "two words"}}, "bus.server"),
        ({"bus": {"server": "host:30000"}}, "bus.server"),
        ({"bus": {"server": "line\n"}}, "bus.server"),
        ({"bus": {"server": "s" * 129}}, "bus.server"),
        ({"bus": {"interval": "0s"}}, "bus.interval"),
        ({"bus": {"interval": "99ms"}}, "bus.interval"),
        ({"bus": {"interval": "2min"}}, "bus.interval"),
        ({"bus": {"requests_interval": "1ms"}}, "bus.requests_interval"),
        ({"bus": {"requests_interval": "2min"}}, "bus.requests_interval"),
        ({"peer": {"keep": "25h"}}, "peer.keep"),
        ({"bus": {"events": 0}}, "bus.events"),
        ({"bus": {"control": "yes"}}, "bus.control"),
    ],
)
def test_errors_are_one_line_that_names_the_field(content, field):
    with pytest.raises(ConfigError) as caught:
        parse_config(content)
    message = str(caught.value)
    assert message.startswith(f"{field}:")
    assert "\n" not in message
    assert ";" in message, "no remedy"


@pytest.mark.parametrize("field", ["url", "username", "password_file", "prefix", "server"])
@pytest.mark.parametrize("source", ["dictionary", "file"])
def test_a_password_in_a_url_is_refused_and_not_repeated(field, source, tmp_path):
    """Also where the mistake is another one: what is said ends up in logs."""
    marker = "planted-marker"
    content = {"bus": {field: 7, "url": f"redis://:{marker}@host"}}
    if source == "file":
        (tmp_path / "tiers.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        load_config(content if source == "dictionary" else f"@{tmp_path / 'tiers.json'}")
    assert marker not in str(caught.value)
    if field == "url":
        assert "contains a password; put it into a file and name it in bus.password_file" in str(caught.value)


def test_a_bus_with_everything():
    content = {
        "url": "rediss://[::1]:6380/2",
        "username": "ops",
        "password_file": "/run/password",
        "ca_file": "/ca.pem",
        "certificate_file": "/own.pem",
        "key_file": "/own.key",
        "prefix": "swift.test",
        "server": "host-30000-17",
        "interval": "60s",
        "requests_interval": "0s",
        "control": True,
    }
    config = parse_config({"bus": content})
    assert (config.bus.interval, config.bus.requests_interval) == (60, 0)
    assert parse_config(json.loads(json.dumps(dump_config(config)))) == config


def test_how_long_a_donor_keeps_what_it_used():
    kept = [parse_config({"peer": peer}).peer.keep for peer in ({}, {"keep": "0s"}, {"keep": "24h"})]
    assert kept == [None, 0, 86_400]


@pytest.mark.parametrize(
    ("said", "on_a_gpu", "on_a_cpu"),
    [
        ({}, "beside", True),
        ({"verify": "auto"}, "beside", True),
        *(({"verify": one},) + (one,) * 2 for one in (True, False, "beside")),
    ],
)
def test_when_pages_in_host_memory_are_verified(said, on_a_gpu, on_a_cpu):
    host = parse_config({"host": said}).host
    assert (host.verifies(copies_beside=True), host.verifies(copies_beside=False)) == (on_a_gpu, on_a_cpu)


@pytest.mark.parametrize("source", ["{", "[1]", "@/does/not/exist", "host"])
def test_sources_that_cannot_be_read(source):
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    assert "\n" not in str(caught.value)


def test_every_field_is_explained():
    lines = list(explain())
    assert len(lines) == sum(
        len(getattr(TiersConfig(), section).__struct_fields__) for section in TiersConfig.__struct_fields__
    )
    for line in lines:
        assert line.description
        assert line.kind
        assert line.default


def test_what_everybody_may_read_has_no_secrets_of_an_engine() -> None:
    config = parse_config(
        {
            "remote": {
                "engine": "seaweedfs",
                "options": {"secret_key": "hidden", "more": {"token": "hidden"}, "pin": 4711},
            }
        }
    )
    shown = json.dumps(shown_config(config))
    assert "hidden" not in shown
    assert "4711" not in shown
    assert "secret_key" in shown, "what it was told is to be seen, not what about"
    assert config.remote.options["secret_key"] == "hidden"
