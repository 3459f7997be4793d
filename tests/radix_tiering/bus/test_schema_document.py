"""`docs/bus.md` says what is: its table is the contract's, its examples run, its rights suffice and are needed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.exceptions import NoPermissionError, ResponseError

from swift_tiers.ops.commands.doctor import bus as doctor_bus
from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.bus.contract.commands import COMMANDS, Flush, read_command
from swift_tiers.radix_tiering.bus.contract.schema import KEYS
from swift_tiers.radix_tiering.bus.contract.schema_document import BEGIN, END, renewed, schema_markdown, unit_of
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.redis.redis_binary import find_cli
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher
from swift_tiers.radix_tiering.figures.story import RestoreStory

from support.bus import PAGE, HandWritten, documented_fields
from support.publishing import wait_published
from support.redis import RealRedis, redis_programs, wait_for

DOCUMENT = Path(__file__).parents[3] / "docs" / "bus.md"
TEXT = DOCUMENT.read_text()


@pytest.fixture(scope="module", params=redis_programs())
def redis_program(request: pytest.FixtureRequest) -> Path:
    """What is documented holds with each."""
    return request.param


@pytest.fixture
def redis(own_redis: RealRedis) -> RealRedis:
    """The tests of rights change its users."""
    return own_redis


# ---- the table ----


def test_the_table_is_the_contract() -> None:
    assert renewed(TEXT) == TEXT, "run: python -m swift_tiers.radix_tiering.bus.contract.schema_document docs/bus.md"


def test_every_key_and_field_has_a_row() -> None:
    rows = schema_markdown().splitlines()
    assert len(rows) == 2 + sum(1 + len(spec.fields) for spec in KEYS)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {9}


def test_every_name_in_a_story_has_a_row() -> None:
    """A JSON object in a field has no rows in the table that is made."""
    section = TEXT.partition("## The story of a restore\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.M)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(RestoreStory.__struct_fields__)


def test_a_document_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="are missing"):
        renewed("# The bus\n")
    assert renewed(f"a\n{BEGIN}\nold\n{END}\nb\n") == f"a\n{BEGIN}\n\n{schema_markdown()}\n{END}\nb\n"


@pytest.mark.parametrize(
    ("field", "unit"),
    [
        ("time", "s since 1970"), ("restore_seconds", "s"), ("used_bytes", "bytes"), ("bytes_read", "bytes"),
        ("bytes", "bytes"), ("prompt_tokens", "tokens"), ("only_pages", "pages"), ("free_units", "stripe units"),
        ("nodes", ""), ("refused:*", ""), ("bytes_per_second", "bytes/s"),
        ("nvlink_sent_bytes_per_second", "bytes/s"), ("nvlink_sent_bytes", "bytes"), ("busy_share", ""),
    ],
)  # fmt: skip
def test_units_are_in_the_names(field: str, unit: str) -> None:
    assert unit_of(field) == unit


# ---- examples ----


def blocks(after: str, before: str) -> list[str]:
    """The indented blocks between two headings."""
    section = TEXT.partition(f"## {after}\n")[2].partition(f"## {before}\n")[0]
    return re.findall(r"(?:^ {4}.*\n)+", section, re.M)


PREAMBLE, *EXAMPLES = blocks("Fourteen questions and their answers", "inspect and control")
(STEERING,) = blocks("Commands", "Events")


@pytest.fixture
def shell(redis: RealRedis, tmp_path: Path) -> Callable[[str], list[str]]:
    """Runs an example, on this Redis as the embedded one; the lines that it prints."""
    home = tmp_path / "swift-tiers"
    home.mkdir()
    (home / "redis.sock").symlink_to(redis.socket)
    cli = find_cli()
    assert cli is not None
    environment = {
        "PATH": f"{cli.parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "USER": "ann",
    }

    def run(script: str) -> list[str]:
        result = subprocess.run(
            ["sh", "-eu"], input=PREAMBLE + script, capture_output=True, text=True, timeout=60, env=environment
        )
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        assert "ERR" not in result.stdout
        return result.stdout.splitlines()

    return run


def test_there_are_fourteen_examples() -> None:
    assert len(EXAMPLES) == 14


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, 15))
def test_examples_answer(redis: RealRedis, shell: Callable[[str], list[str]], example: str) -> None:
    alpha = HandWritten(redis.admin, lends=True, gpu=True).write()
    with alpha.answering():
        assert any(shell(example))


def test_examples_ask_for_fields_that_there_are() -> None:
    """A field that is not there is just an empty line to redis-cli."""
    asked = re.findall(r"hm?get swift:\$S:(?:dp0-tp0:)?(\w+)\S* ([\w ]+)", "".join(EXAMPLES))
    assert {name for name, _ in asked} == {
        "info",
        "tier",
        "tree",
        "stripe",
        "ssd",
        "link",
        "rank",
        "lent",
        "prefix",
        "nodes",
        "gpu",
        "reach",
    }
    for name, fields in asked:
        assert set(fields.split()) <= documented_fields(name)


def test_the_example_about_devices_shows_the_sick_one(redis: RealRedis, shell: Callable[[str], list[str]]) -> None:
    alpha = HandWritten(redis.admin).write()
    alpha.hash("ssd", {"service": "out", "reason": "no answer for 30 s"}, number="1")
    lines = shell(EXAMPLES[4])
    assert lines[:2] == ["/ssd0/swift-tiers-dp0-tp0.stripe", "in service"]
    assert lines[-7:-4] == ["/ssd1/swift-tiers-dp0-tp0.stripe", "out", "no answer for 30 s"]


def test_the_example_about_leases_shows_them(redis: RealRedis, shell: Callable[[str], list[str]]) -> None:
    HandWritten(redis.admin, lends=True).write()
    lines = shell(EXAMPLES[10])
    assert lines[:5] == ["6291456", "4194304", "beta.dp0-tp0", "2097152", "beta.dp0-tp0"]
    assert lines[5:9] == ["3", "6291456", "2097152", "0.1"]
    assert lines[9].split()[1] == "13:2097152:recalled:0.1"


def test_the_example_about_gpus_shows_who_is_reached_how(redis: RealRedis, shell: Callable[[str], list[str]]) -> None:
    HandWritten(redis.admin, gpu=True).write()
    lines = shell(EXAMPLES[13])
    assert lines[:3] == ["NVIDIA H200", str(120 * 2**30), "4"]
    assert lines[-10:-5] == ["GPU-1", "4", "node", "ok", "ok"]
    assert lines[-5:] == ["GPU-2", "0", "system", "chipset not supported", "chipset not supported"]


def test_commands_by_hand(redis: RealRedis, shell: Callable[[str], list[str]]) -> None:
    alpha = HandWritten(redis.admin).write()
    with alpha.obeying():
        # A script that asks once may ask too early on a busy machine.
        lines = shell(
            STEERING.replace("sleep 1;", "until r hget swift:$S:command:my-1 state | grep -q done; do :; done;")
        )
    said = dict(zip(lines[1::2], lines[2::2], strict=True))
    assert (said["state"], said["author"], said["type"]) == ("done", "ann", "flush")


def test_every_command_is_documented_with_json_that_is_one() -> None:
    examples = re.findall(r"^\| `(\{.*\})` \|", TEXT, re.M)
    commands = [read_command(example.replace("KEY", PAGE)) for example in examples]
    assert [type(command) for command in commands] == list(COMMANDS)
    for example, command in zip(examples, commands, strict=True):
        given = json.loads(example).keys() - {"type"}
        assert given == {field.name for field in msgspec.structs.fields(command)}, "every argument is shown"


# ---- rights ----


def denials(redis: RealRedis) -> list[dict[str, str]]:
    """What users were not allowed to do."""
    entries: Any = redis.admin.execute_command("ACL", "LOG")
    return [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in entries]


def grant(redis: RealRedis, name: str) -> BusConfig:
    """Give the user the rights that the document says, and take all from the default user."""
    (line,) = re.findall(rf"^ *ACL SETUSER ({name} .*)$", TEXT, re.M)
    _, *rules = shlex.split(line.replace(">PASSWORD", "'>secret'"))
    redis.set_user(name, *rules)
    redis.set_user("default", "off")
    password = redis.directory / f"{name}.password"
    password.write_text("secret\n")
    password.chmod(0o600)
    return BusConfig(url=redis.url, username=name, password_file=str(password))


def test_the_rights_of_a_server_suffice(redis: RealRedis, publish: Callable[..., BusPublisher]) -> None:
    """For publishing, looking for lenders, answering, obeying, coming back, and leaving; and for `doctor`."""
    config = msgspec.structs.replace(grant(redis, "swift-server"), interval=0.1, control=True)
    told: list[BusPublisher] = []
    lenders: list[str] = []
    look = {"lends": True, "scope": lambda address: "box/1234/1000", "on_neighbours": lenders.extend}
    told.append(publish(config, on_order=lambda entry: told[0].report(entry["id"], ""), **look))
    HandWritten(redis.admin, "beta", lends=True).write()
    wait_for(lambda: lenders == ["beta.dp0-tp0"], "the lender")
    wait_published(redis)
    with BusReader(redis.client(username="admin", password="admin")) as operator:
        assert operator.page(PAGE).answers
        assert operator.command("alpha", "me", Flush()).state == "done"
    redis.admin.flushall()
    wait_for(lambda: redis.admin.exists("swift:alpha:dp0-tp0:rank"), "the publisher's return")
    told[0].close(20)
    assert denials(redis) == []
    found = doctor_bus.remote(config)
    assert found.status in ("ok", "warning"), found


def test_the_rights_of_a_reader_suffice_and_do_not_steer(redis: RealRedis) -> None:
    alpha = HandWritten(redis.admin).write()
    with BusReader.open(grant(redis, "swift-reader")) as reader:
        assert reader.snapshot().servers[0].ranks[0].requests
        assert reader.request("none") == ()
        cursor = reader.newest_events("alpha").cursor
        assert reader.events("alpha", cursor).items == ()
        with pytest.raises(BusError, match="not permitted"):
            reader.command("alpha", "me", Flush())
        with pytest.raises(BusError, match="not permitted"):
            reader.page(PAGE)
    assert redis.admin.exists(alpha.key("control"), alpha.key("questions")) == 0
    denied = {entry["object"] for entry in denials(redis)}
    assert denied == {"xadd"}, "only what a reader may not do was tried in vain"


def test_the_rights_of_an_operator_suffice(redis: RealRedis) -> None:
    alpha = HandWritten(redis.admin).write()
    with BusReader.open(grant(redis, "swift-operator")) as reader, alpha.obeying(), alpha.answering():
        assert reader.command("alpha", "me", Flush()).state == "done"
        assert reader.page(PAGE).answers
        assert reader.snapshot().servers
    assert denials(redis) == []


@pytest.mark.parametrize("name", ["swift-server", "swift-reader", "swift-operator"])
def test_no_user_reaches_beyond_the_prefix_or_to_administration(redis: RealRedis, name: str) -> None:
    grant(redis, name)
    redis.admin.set("other:key", "1")
    with redis.client(username=name, password="secret") as client:
        for command in (
            ["GET", "other:key"], ["KEYS", "*"], ["FLUSHALL"], ["CONFIG", "GET", "*"], ["SCRIPT", "FLUSH"],
            ["EVAL", "return 1", "0"], ["ACL", "LIST"], ["MONITOR"], ["PUBLISH", "swift:x", "1"],
        ):  # fmt: skip
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


def test_an_operator_limited_to_asking_and_commanding(redis: RealRedis) -> None:
    config = grant(redis, "swift-operator")
    (line,) = re.findall(r"^ *ACL SETUSER swift-operator (.*)$", TEXT, re.M)
    (selector,) = re.findall(r"`(\(\+xadd [^`]*\))`", TEXT)
    rules = line.replace(">PASSWORD", ">secret").removesuffix(" +xadd").split()
    if int(str(redis.admin.info("server")["redis_version"]).partition(".")[0]) < 7:
        with pytest.raises(ResponseError, match="ACL SETUSER"):
            redis.set_user("swift-operator", *rules, selector)
        return
    redis.set_user("swift-operator", *rules, selector)
    alpha = HandWritten(redis.admin).write()
    with BusReader.open(config) as reader, alpha.obeying(), alpha.answering():
        assert reader.command("alpha", "me", Flush()).state == "done"
        assert reader.page(PAGE).answers
    with redis.client(username="swift-operator", password="secret") as client, pytest.raises(NoPermissionError):
        client.xadd(alpha.key("events"), {"kind": "forged"})
