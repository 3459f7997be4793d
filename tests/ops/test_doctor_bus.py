"""`swift-tiers doctor` on the bus: against real Redis servers, and where there is none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.ops import cli
from swift_tiers.ops.commands.doctor import bus, command
from swift_tiers.ops.commands.doctor.finding import Check, Finding
from swift_tiers.ops.commands.doctor.isolation import run_checks
from swift_tiers.radix_tiering.base.config import BusConfig, TiersConfig
from swift_tiers.radix_tiering.bus.redis.redis_binary import SERVER_VARIABLE
from swift_tiers.radix_tiering.bus.redis.redis_server import EmbeddedRedis

from support.doctor import assert_finding
from support.redis import RealRedis, free_port, processes_with


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with RealRedis() as server:
        yield server


def look(config: BusConfig) -> dict[str, Finding]:
    """Every check of the bus, run as the command runs them."""
    checks = list(bus.checks(config))
    return dict(zip((check.name for check in checks), run_checks(checks), strict=True))


# ---- a Redis of one's own ----


def test_a_redis_that_is_there(redis: RealRedis) -> None:
    found = look(BusConfig(url=redis.url))
    assert list(found) == ["Redis", "clock skew"]
    assert_finding(found["Redis"], found["Redis"].status, redis.url, "can be written", "answers in")
    assert found["Redis"].status in ("ok", "warning")  # a busy machine may answer slowly
    assert_finding(found["clock skew"], "ok", "known to")
    assert redis.admin.keys() == []


def test_a_redis_that_is_not_there() -> None:
    found = look(BusConfig(url=f"redis://127.0.0.1:{free_port()}"))
    assert_finding(found["Redis"], "wrong", "not reachable", "check that it runs")
    assert_finding(found["clock skew"], "note", "not known")


def test_a_redis_that_another_version_speaks_on(redis: RealRedis) -> None:
    with redis.client() as client:
        client.set(f"{BusConfig().prefix}:schema", 7)
    found = look(BusConfig(url=redis.url))["Redis"]
    assert_finding(found, "wrong", ":schema is '7'", "redis-cli DEL swift:schema")


def test_a_redis_that_does_not_answer(redis: RealRedis) -> None:
    redis.pause(30)
    assert_finding(look(BusConfig(url=redis.url))["Redis"], "wrong", "no answer within")


def test_a_redis_that_is_full(redis: RealRedis) -> None:
    redis.fill()
    assert_finding(look(BusConfig(url=redis.url))["Redis"], "wrong", "memory is full", "maxmemory")


def test_a_user_without_rights(redis: RealRedis, tmp_path: Path) -> None:
    redis.set_user("reader", "on", ">secret", "~swift:*", "+@read", "+@connection")
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    config = BusConfig(url=redis.url, username="reader", password_file=str(password))
    found = look(config)["Redis"]
    assert_finding(found, "wrong", "not permitted", "rights")
    assert "secret" not in str(found)
    redis.set_user("writer", "on", ">secret", "~swift:*", "+@all")
    config = BusConfig(url=redis.url, username="writer", password_file=str(password))
    assert look(config)["Redis"].status in ("ok", "warning")


def test_a_password_that_others_may_read(redis: RealRedis, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o644)
    found = look(BusConfig(url=redis.url, password_file=str(password)))["Redis"]
    assert_finding(found, "wrong", "may be read by others", "chmod 600")


def test_answer_time() -> None:
    assert_finding(bus.answer_time(0.0004), "ok", "0.4 ms")
    assert_finding(bus.answer_time(0.2), "warning", "200.0 ms", "slowlog")


def test_clock_skew() -> None:
    assert_finding(bus.skew(-0.012, 0.001), "ok", "12 ms, known to 1 ms")
    assert_finding(bus.skew(1.5, 0.001), "warning", "1.5 s ahead of", "NTP")
    assert_finding(bus.skew(-45.0, 0.001), "wrong", "45.0 s behind", "NTP")


# ---- the embedded one ----


@pytest.fixture
def short_path(tmp_path: Path) -> Path:
    assert len(os.fsencode(tmp_path)) < 90, "a socket must fit below it"
    return tmp_path


def test_the_embedded_redis_can_be_started(short_path: Path) -> None:
    home = short_path / "bus"
    found = look(BusConfig(directory=str(home)))
    assert list(found) == ["embedded Redis"]
    assert_finding(found["embedded Redis"], "ok", "version", "starts and answers", str(home))
    assert list(short_path.iterdir()) == [], "neither the directory nor a trial beside it stays"
    home.mkdir(mode=0o700)
    assert look(BusConfig(directory=str(home)))["embedded Redis"].status == "ok"
    assert list(home.iterdir()) == []
    assert processes_with(str(short_path)) == []


def test_a_directory_whose_name_leaves_no_room_for_a_trial(tmp_path: Path) -> None:
    home = tmp_path / ("d" * (100 - 11 - len(os.fsencode(tmp_path))))
    home.mkdir(mode=0o700)
    assert_finding(look(BusConfig(directory=str(home)))["embedded Redis"], "ok", "starts and answers")


def test_an_embedded_redis_that_runs(short_path: Path) -> None:
    server = EmbeddedRedis(short_path / "bus")
    try:
        assert server.ensure()
        found = look(BusConfig(directory=str(short_path / "bus")))
        assert_finding(found["embedded Redis"], "ok", "runs already")
        assert server.ensure()
        assert len(processes_with(str(server.path))) == 1
    finally:
        server.close()


def test_no_redis_to_start(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, str(short_path / "none"))
    found = look(BusConfig(directory=str(short_path / "bus")))["embedded Redis"]
    assert_finding(found, "wrong", SERVER_VARIABLE, "none")


def test_a_redis_that_does_not_start(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names its version as asked, and then ends at once."""
    script = short_path / "broken-redis"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.0.0" || exit 1\n')
    script.chmod(0o700)
    monkeypatch.setenv(SERVER_VARIABLE, str(script))
    found = look(BusConfig(directory=str(short_path / "bus")))["embedded Redis"]
    assert_finding(found, "wrong", "ended with code 1")
    assert list(short_path.iterdir()) == [script]


@pytest.mark.parametrize(("mode", "words"), [(0o755, ["open to others", "chmod 700"]), (None, ["cannot be written"])])
def test_a_directory_that_cannot_be_used(mode: int | None, words: list[str], short_path: Path) -> None:
    home = short_path / "bus"
    if mode is None:
        home = home / "far" / "below"
    else:
        home.mkdir()
        home.chmod(mode)
    assert_finding(look(BusConfig(directory=str(home)))["embedded Redis"], "wrong", *words)


def test_the_usual_directory_taken_by_others(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops no start, so it is not wrong."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    (short_path / "swift-tiers").mkdir()
    (short_path / "swift-tiers").chmod(0o777)
    finding = bus.explained(bus.embedded, BusConfig())
    assert_finding(finding, "warning", "servers serve without the bus, and lend no memory", "or set bus.url")


def test_a_long_directory_that_cannot_be_used(short_path: Path) -> None:
    """A socket fits there, one in a directory below it does not: it is tried elsewhere, and looked at all the same."""
    longest = 107 - len("/redis.sock") - len(os.fsencode(short_path)) - 1
    home = short_path / ("d" * (longest - len("/bus"))) / "bus"
    assert_finding(look(BusConfig(directory=str(home)))["embedded Redis"], "wrong", "cannot be written", "No such")
    home.parent.mkdir()
    assert_finding(look(BusConfig(directory=str(home)))["embedded Redis"], "ok", "starts and answers")
    assert list(home.parent.iterdir()) == []


# ---- the command ----


def test_a_bus_that_is_off() -> None:
    assert_finding(look(BusConfig(enabled=False))["bus"], "note", "off")


def test_an_unreachable_redis_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = command.families

    def only_bus(config: TiersConfig, ranks: int) -> dict[str, Any]:
        families: dict[str, list[Check]] = {name: list(members) for name, members in every(config, ranks).items()}
        return {"bus": families["bus"]}

    monkeypatch.setattr(command, "families", only_bus)
    config = {"bus": {"url": f"redis://127.0.0.1:{free_port()}"}}
    assert cli.main(["doctor", "--json", "--config", json.dumps(config)]) == 3
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is False
    assert [check["name"] for check in content["checks"] if check["status"] == "wrong"] == ["Redis"]
    config["bus"] = {"enabled": False}  # type: ignore[dict-item]
    assert cli.main(["doctor", "--json", "--config", json.dumps(config)]) == 0
