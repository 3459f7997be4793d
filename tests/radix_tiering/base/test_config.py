"""The configuration: what users write, and the one line they get when it cannot work."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base import read_config
from swift_tiers.radix_tiering.base.config import PeerConfig, SsdConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.read_config import dump_config, explain, load_config, parse_config, shown_config
from swift_tiers.radix_tiering.base.units import _SECONDS, _SIZES, Duration, Size, format_size

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


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


@given(st.floats(0, 2**33, allow_subnormal=False))
@example(3_600_000_000.0)
@example(Duration.parse("123.45678ms"))
@example(Duration.parse("0.0001us"))
def test_a_duration_as_text_is_the_same_number(seconds):
    assert Duration.parse(str(Duration(seconds))) == seconds


@given(st.integers(0, 2**63 - 1))
def test_a_size_as_number_or_text_is_the_same_number(count):
    assert Size.parse(count) == Size.parse(str(count)) == count
    config = parse_config({"host": {"size": count}})
    assert parse_config(json.loads(json.dumps(dump_config(config)))) == config


@given(st.integers(10_000, 5_000_000), st.sampled_from(["us", "ms", "s"]), st.integers(0, 5))
def test_ranks_accept_what_the_launcher_accepted(number, unit, digits):
    """They get its text of it, in which four times a bound was once less than four times that bound."""

    def text(count):
        return f"{count // 10**digits}.{count % 10**digits:0{digits}}{unit}" if digits else f"{count}{unit}"

    peer = {"borrow": True, "recall_bound": text(number), "term": text(4 * number)}
    try:
        config = parse_config({"peer": peer})
    except ConfigError:
        return  # out of bounds; or one in which four times the one is more than the other
    assert parse_config(json.loads(json.dumps(dump_config(config)))) == config


@pytest.mark.parametrize("text", ["1000000h", "123.45678ms"])
def test_a_deadline_of_many_digits_is_read_back(text):
    config = parse_config({"policy": {"restore_deadline": text}})
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize("text", ["9" * 400 + "h", "9" * 308 + "h", "3000000h"], ids=len)
def test_a_duration_that_nobody_can_wait_for(text):
    with pytest.raises(ConfigError, match=r"^policy\.restore_deadline: .* is longer than anything .*; see") as caught:
        parse_config({"policy": {"restore_deadline": text}})
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(
    "count", [2**63, str(2**63), "9" * 400 + "GiB", 2**70, "8388608TiB"], ids=lambda count: str(count)[:20]
)
def test_more_bytes_than_there_are(count):
    with pytest.raises(ConfigError, match=r"^host\.size: .*; see"):
        parse_config({"host": {"size": count}})
    with pytest.raises(ValueError, match="more bytes than there are anywhere"):
        Size.parse(count)


@pytest.mark.parametrize(
    "field", ["policy.admission_uses", "policy.admission_tokens", "restore.chunk", "remote.min_tokens"]
)
def test_a_count_that_readers_of_the_bus_cannot_hold(field):
    section, name = field.split(".")
    more = {"engine": "file"} if section == "remote" else {}
    assert getattr(getattr(parse_config({section: {**more, name: 2**31 - 1}}), section), name) == 2**31 - 1
    with pytest.raises(ConfigError, match=f"^{field}: expected `int` <= 2147483647; see"):
        parse_config({section: {**more, name: 2**64}})


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"host": {}, "host": {}}', "host"),
        ('{"host": {"size": 1, "size": 2}}', "host.size"),
        ('{"remote": {"options": {"a": [{}, {"b": 1, "c": 2, "b": 3}]}}}', "remote.options.a.1.b"),
        ('{"host": {"size": 1, "size": 2}, "host": {}}', "host"),
    ],
)
def test_a_name_that_is_there_twice_is_named_with_file_and_section(text, field, tmp_path):
    path = tmp_path / "tiers.json"
    path.write_text(text)
    for source, name in ((text, "--swift-tiers-config"), (f"@{path}", str(path))):
        with pytest.raises(ConfigError) as caught:
            load_config(source)
        assert str(caught.value) == f"{name}: {field} is there twice; keep one"


def test_many_names_are_not_each_compared_with_each_other():
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    made = read_config._EachOnce()([(Name(number), 1) for number in range(3000)] + [(Name("7"), 2)])
    assert len(made) == 3000
    assert compared < 30_000


def test_only_a_file_of_a_configurations_size_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(17 << 20)
    for path, why in (
        ("/dev/zero", "it is no file"),
        (tmp_path / "pipe", "it is no file"),
        (tmp_path / "large.json", "it has more than 16MiB"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(f"@{path}")
        assert str(caught.value) == f"{path}: cannot be read ({why}); name a TOML or JSON file after the @"


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
        {
            "host": {"size": "1GiB"},
            "policy": {"restore_deadline": "250ms"},
            "ssd": {"directories": ["/ssd0"], "throttle": "1GiB"},
        }
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
        ({"remote": {"engine": ""}}, "remote.engine"),
        ({"remote": {"engine": " \t"}}, "remote.engine"),
        ({"remote": {"engine": " mooncake "}}, "remote.engine"),
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
        ({"bus": {"url": "redis://host", "control": True, "enabled": False}}, "bus.control"),
        ({"ssd": {"size_per_device": "200GiB"}}, "ssd.size_per_device"),
        ({"ssd": {"add_beneath": ["/a"]}}, "ssd.add_beneath"),
        ({"ssd": {"throttle": "1GiB"}}, "ssd.throttle"),
        ({"ssd": {"directories": ["/a"], "gpu_direct": "on"}, "device": {"landing": 0}}, "ssd.gpu_direct"),
        ({"ssd": {"directories": ["/a"], "codec": "zstd"}, "host": {"codec": "int8"}}, "ssd.codec"),
        ({"ssd": {"directories": ["/a"], "codec_threads": 0}}, "ssd.codec_threads"),
        ({"ssd": {"codec": "zstd"}}, "ssd.codec"),
        ({"peer": {"term": "5s"}}, "peer.term"),
        ({"peer": {"directory": "/a"}}, "peer.directory"),
        ({"peer": {"borrow": True, "window": "5s"}}, "peer.window"),
        ({"peer": {"borrow": True, "keep": "5s"}}, "peer.keep"),
        ({"peer": {"donate": True, "borrow_limit": "16GiB"}}, "peer.borrow_limit"),
        ({"peer": {"borrow": True, "borrow_limit": 0}}, "peer.borrow_limit"),
        ({"peer": {"borrow": True, "borrow_limit": 16}}, "peer.borrow_limit"),
        ({"peer": {"donate": "0..0%"}}, "peer.donate"),
        ({"ssd": {"directories": ["/a", "b"]}}, "ssd.directories[1]"),
        ({"ssd": {"directories": ["~/a"]}}, "ssd.directories[0]"),
        ({"ssd": {"devices": ["nvme0n1"]}}, "ssd.devices[0]"),
        ({"ssd": {"directories": ["/a"], "add_beneath": [""]}}, "ssd.add_beneath[0]"),
        ({"bus": {"directory": "bus"}}, "bus.directory"),
        ({"bus": {"directory": "~nobody-of-this-name/bus"}}, "bus.directory"),
        ({"peer": {"donate": True, "directory": "./leases"}}, "peer.directory"),
    ],
)
def test_errors_are_one_line_that_names_the_field(content, field):
    with pytest.raises(ConfigError) as caught:
        parse_config(content)
    message = str(caught.value)
    assert message.startswith(f"{field}:")
    assert "\n" not in message
    assert ";" in message, "no remedy"


def test_of_every_field_it_is_known_what_it_has_an_effect_with():
    groups = (read_config._OF_PEERS, read_config._OF_DONORS, read_config._OF_BORROWERS, ("donate", "borrow"))
    assert sorted(name for group in groups for name in group) == sorted(PeerConfig.__struct_fields__)
    assert {*read_config._OF_SSD, "directories", "devices"} == set(SsdConfig.__struct_fields__)


def test_a_default_that_is_written_down_is_no_setting():
    everything = dump_config(TiersConfig())
    assert parse_config(everything) == TiersConfig()
    assert parse_config({"ssd": {"stripe_unit": "256KiB"}, "peer": {"window": "60s", "borrow_limit": None}})


def test_a_home_directory_is_an_absolute_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    config = parse_config({"bus": {"directory": "~/bus"}, "peer": {"donate": True, "directory": "~/leases"}})
    assert (config.bus.directory, config.peer.directory) == ("~/bus", "~/leases")


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
    settings: tuple[dict, ...] = ({}, {"keep": "0s"}, {"keep": "24h"})
    kept = [parse_config({"peer": {"donate": True, **peer}}).peer.keep for peer in settings]
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


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", '[host]\nsize = "1MiB"'), ("a.json", '{"host": {"size": "1MiB"}}')]
)
def test_a_mark_at_the_beginning_of_a_file_is_none_of_its_content(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert load_config(f"@{tmp_path / name}").host.size == 2**20


@pytest.mark.parametrize("name", ["tiers.yaml", "tiers.json", "tiers.toml"])
@pytest.mark.parametrize(
    "text",
    ["host:\n  size: 8GiB\n", "a = " + "9" * 5000, "a = " + "[" * 5000, "[" * 100_000],
    ids=["YAML", "digits", "tables", "lists"],
)
def test_what_is_neither_toml_nor_json(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(f"@{tmp_path / name}")
    message = str(caught.value)
    assert "\n" not in message
    if text.startswith("host"):
        assert f"{name}: not valid {'TOML' if name.endswith('.toml') else 'JSON'}: " in message
        assert "; a file is read as TOML if its name ends with .toml, otherwise as JSON or TOML" in message


def test_a_file_at_home_where_there_is_no_home(monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", homeless)
    with pytest.raises(ConfigError, match=r"^~/tiers\.toml: cannot be read \(Could not determine home directory"):
        load_config("@~/tiers.toml")


def test_every_field_is_explained():
    lines = list(explain())
    assert len(lines) == sum(
        len(getattr(TiersConfig(), section).__struct_fields__) for section in TiersConfig.__struct_fields__
    )
    for line in lines:
        assert line.description
        assert line.kind
        assert line.default


# ---- the document ----


def _documented_limits() -> Iterator[tuple[str, str, str]]:
    """Field, from and to, of each row in the table of limits."""
    section = DOCUMENT.read_text().partition("\n## Units and limits\n")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (`.*) \|$", section, re.M):
        fields, lowest, highest = (cell.strip() for cell in row.split("|"))
        yield from ((field, lowest, highest) for field in re.findall(r"`([a-z_.]+)`", fields))


def _kind(field: str) -> type:
    section, name = field.split(".")
    hint = get_args(get_type_hints(type(getattr(TiersConfig(), section)), include_extras=True)[name])[0]
    return next((kind for kind in (Size, Duration) if kind in (hint, *get_args(hint))), int)


#: What a section needs beside the field, so that it has an effect.
BESIDE = {
    "ssd": {"directories": ["/ssd0"]},
    "peer": {"donate": True, "borrow": True},
    "remote": {"engine": "file"},
    "bus": {},
}


def _takes(field: str, value: float) -> bool:
    section, name = field.split(".")
    kind = _kind(field)
    text = str(Duration(value)) if kind is Duration else int(value)
    try:
        parse_config({section: {**BESIDE[section], name: text}})
    except ConfigError as error:
        if not str(error).startswith(f"{field}:"):
            raise  # it is refused for something else
        return False
    return True


@pytest.mark.parametrize(("field", "lowest", "highest"), list(_documented_limits()))
def test_the_limits_in_the_document_are_those_of_the_code(field: str, lowest: str, highest: str) -> None:
    step = {Size: 4096, Duration: 1e-6}.get(_kind(field), 1)
    read = {Size: Size.parse, Duration: Duration.parse}.get(_kind(field), int)
    lowest = lowest.replace("four times `peer.recall_bound`", str(Duration(4 * PeerConfig().recall_bound)))
    lowest, _, otherwise = lowest.partition(", or ")
    least = read(lowest.removeprefix("above "))
    if lowest.startswith("above "):
        assert not _takes(field, least)
        least += step
    assert _takes(field, least)
    assert not _takes(field, least - step)
    assert not otherwise or _takes(field, read(otherwise))
    if highest:
        assert _takes(field, read(highest))
        assert not _takes(field, read(highest) + step)


def test_the_units_in_the_document_are_those_of_the_code() -> None:
    section = " ".join(DOCUMENT.read_text().partition("\n## Units and limits\n")[2].partition("\n## ")[0].split())
    for begin, units in (("A size is", _SIZES), ("A duration is", _SECONDS)):
        said = section.partition(begin)[2].partition(";")[0]
        named = re.findall(r"\b(?:[kKMGT]i?B|B|us|ms|s|min|h)\b", said)
        assert {unit.lower() for unit in named} == set(filter(None, units)), begin
    with pytest.raises(ValueError, match="is not a size"):
        Size.parse("8G")
    with pytest.raises(ValueError, match="is not a duration"):
        Duration.parse("10m")


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
