"""`--enable-swift-tiers` and `--swift-tiers-config` as fields of SGLang's own argument record.

As fields of the record they show in every `--help`, in `/server_info` and in `--config` files, and `Engine(...)` takes
them as keywords. What they mean in SGLang's terms (its external linker) is declared as a resolution, so the record
keeps what the user gave.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from typing import Any, NoReturn

from sglang.srt.arg_groups.arg_utils import NS, A, Arg
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.server_args import ServerArgs

from swift_tiers.radix_tiering.config import dump_config, parse_config, read_source
from swift_tiers.radix_tiering.errors import ConfigError
from swift_tiers.sglang_ext.build import check_donor, check_machine

#: Tokens of a page unless `--page-size` says otherwise: with SGLang's default of 1, everything is per token.
DEFAULT_PAGE_SIZE = 16
#: Characters of a server's name on the bus.
LONGEST_NAME = 128
_LINKER = {"linker": "SwiftLinker", "linker_module_path": "swift_tiers.sglang_ext.linker"}
_SOURCE = "swift-tiers"


def _parse_command_line(text: str) -> dict[str, Any]:
    """argparse's type for `--swift-tiers-config`: what argparse would say about an error is not one line."""
    try:
        content = read_source(text)
        parse_config(content)
    except ConfigError as error:
        _exit(error)
    return content


class SwiftServerArgs(ServerArgs, dict=True):  # type: ignore[call-arg]  # msgspec's
    """SGLang's arguments and ours."""

    enable_swift_tiers: A[
        bool, "Put memory tiers (host DRAM, striped SSDs) beneath the radix tree's device memory.", NS("memory")
    ] = False
    swift_tiers_config: A[
        dict[str, Any] | None,
        Arg(
            help="Configuration of the tiers: a JSON object, or @FILE with TOML or JSON. "
            "`swift-tiers config --explain` lists every field.",
            type_parser=_parse_command_line,
        ),
        NS("memory"),
    ] = None

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> SwiftServerArgs:
        record: SwiftServerArgs = super().from_cli_args(args)
        # Bookkeeping, not a field: errors end the command line with one line, but are raised to callers of Engine.
        record._from_command_line = True
        return record


def check_arguments(server_args: Any, previous: Any) -> None:
    """Resolution step, the first one: refuse what cannot work before anything is loaded."""
    try:
        _check(resolving_view(server_args))
    except ConfigError as error:
        if getattr(server_args, "_from_command_line", False):
            _exit(error)
        raise
    previous(server_args)


def translate_arguments(server_args: Any, previous: Any) -> None:
    """Resolution step: our fields in SGLang's terms."""
    view = resolving_view(server_args)
    if view.enable_swift_tiers:
        fields: dict[str, Any] = {
            "enable_unified_cache_external_linker": True,
            "unified_cache_external_linker_backend": "dynamic",
            "unified_cache_external_linker_config": {
                **_LINKER,
                "linker_extra_config": _effective_config(view),
            },
        }
        if view.page_size is None:
            fields["page_size"] = DEFAULT_PAGE_SIZE
        declare_resolution(server_args, _SOURCE, **fields)
    previous(server_args)


def _effective_config(view: Any) -> dict[str, Any]:
    """The configuration as all ranks get it: with a name for the server, which must be the same for all of them."""
    content = dump_config(parse_config(read_source(view.swift_tiers_config)))
    if content["bus"]["server"] is None:
        content["bus"]["server"] = server_name(view.port, view.dist_init_addr, view.nnodes)
    return content


def server_name(port: int, dist_init_addr: str | None, nodes: int) -> str:
    """The name on the bus of a server that was given none.

    On one machine it is of the host, the port and this process; over several ones of what all of them are given, the
    address where they meet.
    """
    words = dist_init_addr if nodes > 1 and dist_init_addr else f"{socket.gethostname()}-{port}-{os.getpid()}"
    return re.sub(r"[^A-Za-z0-9._-]", "-", words)[-LONGEST_NAME:]


def _check(view: Any) -> None:
    if not view.enable_swift_tiers:
        if view.swift_tiers_config:
            raise ConfigError("--swift-tiers-config: has no effect without --enable-swift-tiers; add that flag")
        return
    config = parse_config(read_source(view.swift_tiers_config))
    for flag, is_set, remedy in (
        ("--disable-radix-cache", view.disable_radix_cache, "remove it: the tiers lie beneath the radix tree"),
        ("--enable-hierarchical-cache", view.enable_hierarchical_cache, "use one of the two"),
        ("--hicache-storage-backend", view.hicache_storage_backend is not None, "use one of the two"),
        ("--radix-cache-backend", view.radix_cache_backend is not None, "use one of the two"),
        ("--enable-lmcache", view.enable_lmcache, "use one of the two"),
        ("--enable-flexkv", view.enable_flexkv, "use one of the two"),
        ("--enable-unified-cache-external-linker", view.enable_unified_cache_external_linker, "use one of the two"),
        ("--pp-size", view.pp_size > 1, "pipeline stages are not supported: use --tp-size"),
        # What splits KV otherwise than by heads over all tensor-parallel ranks: a rank's number would not say which KV
        # it has (`Rank.identity`). Groups of experts (--ep-size, --moe-dp-size, --dwdp-size) split the MLPs alone.
        ("--enable-dp-attention", view.enable_dp_attention, "it is not supported: use --dp-size alone"),
        ("--attn-dp-size", view.attn_dp_size > 1, "it is not supported: use --dp-size alone"),
        ("--attn-cp-size", view.attn_cp_size > 1, "it is not supported: use --tp-size alone"),
        ("--enable-prefill-cp", view.enable_prefill_cp, "it is not supported: use --tp-size alone"),
        ("--dcp-size", view.dcp_size > 1, "it is not supported: use --tp-size alone"),
        ("--enable-kv-cache-sharding", view.enable_kv_cache_sharding, "it is not supported: remove it"),
        ("--enable-dsa-cache-layer-split", view.enable_dsa_cache_layer_split, "it is not supported: remove it"),
        ("--speculative-algorithm", view.speculative_algorithm is not None, "draft models are not supported"),
        ("--disaggregation-mode", view.disaggregation_mode != "null", "it is not supported: remove one of the two"),
    ):
        if is_set:
            raise ConfigError(f"{flag}: cannot be combined with --enable-swift-tiers; {remedy}")
    page_size = DEFAULT_PAGE_SIZE if view.page_size is None else view.page_size
    if page_size < 1:
        raise ConfigError(f"--page-size: {page_size} is not a number of tokens; use for example {DEFAULT_PAGE_SIZE}")
    chunk = view.chunked_prefill_size
    if chunk is not None and chunk > 0 and chunk % page_size:
        raise ConfigError(
            f"--page-size: {page_size} does not divide --chunked-prefill-size {chunk}; use {chunk} // n for some n"
        )
    check_machine(config, ranks=view.tp_size * view.dp_size)
    check_donor(config, tensor_size=view.tp_size, page_size=page_size, memory_saver=view.enable_memory_saver)
    if config.bus.enabled:
        from swift_tiers.radix_tiering.bus.connection import check

        check(config.bus)


def _exit(error: Exception) -> NoReturn:
    print(f"swift-tiers: error: {error}", file=sys.stderr)  # noqa: T201 - what a command line does
    raise SystemExit(2)
