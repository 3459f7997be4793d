"""`--enable-swift-tiers` and `--swift-tiers-config` as fields of SGLang's own argument record.

As fields of the record they show in every `--help`, in `/server_info` and in `--config` files, and `Engine(...)` takes
them as keywords. What they mean in SGLang's terms (its external linker) is declared as a resolution, so the record
keeps what the user gave.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NoReturn

from sglang.srt.arg_groups.arg_utils import NS, A, Arg
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.server_args import ServerArgs

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.read_config import dump_config, parse_config, read_source
from swift_tiers.radix_tiering.base.release import required_sglang

from .build.assembly import last_rank
from .build.start_checks import check_start, server_name, without_a_bus_that_cannot_be
from .models import check_backends, check_swiftkv, exits_early, is_swiftkv
from .pools.supported import (
    check_capability,
    check_device,
    check_model,
    check_modes,
    check_radix_cache,
    check_speculation,
    check_windows,
)

logger = logging.getLogger(__name__)

#: Tokens of a page unless `--page-size` says otherwise: with SGLang's default of 1, everything is per token.
DEFAULT_PAGE_SIZE = 16
_LINKER = {"linker": "SwiftLinker", "linker_module_path": "swift_tiers.sglang_ext.way.linker"}
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
    with _refusing(server_args):
        _check(resolving_view(server_args))
    previous(server_args)


def check_model_arguments(server_args: Any, previous: Any) -> None:
    """Resolution step in which SGLang adjusts its arguments to the model: refuse those that cannot be carried."""
    view = resolving_view(server_args)
    if not view.enable_swift_tiers:
        previous(server_args)
        return
    from sglang.srt.arg_groups.model_override_base import model_config_of

    with _refusing(server_args):
        config = parse_config(read_source(view.swift_tiers_config))
        check_model(model_config_of(server_args), config)
    previous(server_args)
    with _refusing(server_args):
        check_windows(server_args, view, model_config_of(server_args), config)


def check_modes_arguments(server_args: Any, previous: Any) -> None:
    """Resolution step, the last one that decides about modes: SGLang switches some on for a model by itself."""
    view = resolving_view(server_args)
    if view.enable_swift_tiers:
        with _refusing(server_args):
            check_modes(view)
            check_speculation(view, parse_config(read_source(view.swift_tiers_config)))
    previous(server_args)


def check_tree(server_args: Any, previous: Any) -> None:
    """Resolution step in which SGLang judges a linker: it has switched its radix cache off for some modes by then, and
    would name arguments that nobody has given."""
    view = resolving_view(server_args)
    if view.enable_swift_tiers:
        with _refusing(server_args):
            check_radix_cache(view)
    previous(server_args)


def check_capabilities(server_args: Any, previous: Any) -> None:
    """Resolution step, a late one, in which SGLang switches its radix cache off for some models. It has chosen by
    then how large chunks are, unless it was told."""
    previous(server_args)
    view = resolving_view(server_args)
    if view.enable_swift_tiers:
        from sglang.srt.arg_groups.model_override_base import model_config_of

        with _refusing(server_args):
            check_capability(view, model_config_of(server_args))
            _check_chunk(view.chunked_prefill_size, view.page_size)


def prepare_swiftkv_arguments(server_args: Any, previous: Any) -> None:
    """Resolution step in which SGLang decides about CUDA graphs, with or without tiers: refuse what a SwiftKV model
    cannot be combined with. Of its forwards, only decoding has graphs: how many of a prompt's tokens go on to the later
    layers is another number for each batch; and of an answer's, where some exit early."""
    if _serves_swiftkv(server_args):
        from sglang.srt.arg_groups.model_override_base import model_config_of

        with _refusing(server_args):
            check_swiftkv(resolving_view(server_args), model_config_of(server_args))
        declare_resolution(server_args, _SOURCE, disable_prefill_cuda_graph=True)
        if exits_early(model_config_of(server_args).hf_config):
            declare_resolution(server_args, _SOURCE, disable_decode_cuda_graph=True)
    previous(server_args)


def check_swiftkv_backends(server_args: Any, previous: Any) -> None:
    """Resolution step, a late one: SGLang has chosen who computes attention."""
    previous(server_args)
    if _serves_swiftkv(server_args):
        with _refusing(server_args):
            check_backends(resolving_view(server_args))


def _serves_swiftkv(server_args: Any) -> bool:
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.connector import ConnectorType
    from sglang.srt.utils.common import parse_connector_type

    if parse_connector_type(resolving_view(server_args).model_path) == ConnectorType.INSTANCE:
        return False  # there is nothing to look at before it is loaded
    return is_swiftkv(model_config_of(server_args).hf_config)


@contextlib.contextmanager
def _refusing(server_args: Any) -> Iterator[None]:
    """A ConfigError within ends a command line with one line, and is raised to others."""
    try:
        yield
    except ConfigError as error:
        if getattr(server_args, "_from_command_line", False):
            _exit(error)
        raise


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
    config, trouble = without_a_bus_that_cannot_be(parse_config(read_source(view.swift_tiers_config)))
    if trouble:
        logger.warning("swift-tiers: %s", trouble)
    content = dump_config(config)
    if content["bus"]["server"] is None:
        content["bus"]["server"] = server_name(view.port, view.dist_init_addr, view.nnodes)
    return content


def _check(view: Any) -> None:
    if not view.enable_swift_tiers:
        if view.swift_tiers_config:
            raise ConfigError("--swift-tiers-config: has no effect without --enable-swift-tiers; add that flag")
        return
    check_release()
    check_device(view.device)
    config, _ = without_a_bus_that_cannot_be(parse_config(read_source(view.swift_tiers_config)))
    if view.enable_unified_cache_external_linker:
        raise ConfigError(
            "--enable-unified-cache-external-linker: cannot be combined with --enable-swift-tiers; use one of the two"
        )
    check_modes(view)
    if config.host.codec != "none" and str(view.kv_cache_dtype).startswith("fp8"):
        raise ConfigError(
            f"host.codec: {config.host.codec} encodes no KV of --kv-cache-dtype {view.kv_cache_dtype}, which has 8 "
            "bits already; use host.codec none"
        )
    if config.ssd.codec != "none" and str(view.kv_cache_dtype).startswith("fp8"):
        raise ConfigError(
            f"ssd.codec: KV of --kv-cache-dtype {view.kv_cache_dtype} has no exponents of 16 bits for "
            f"{config.ssd.codec} to code; use ssd.codec none"
        )
    page_size = DEFAULT_PAGE_SIZE if view.page_size is None else view.page_size
    if page_size < 1:
        raise ConfigError(f"--page-size: {page_size} is not a number of tokens; use for example {DEFAULT_PAGE_SIZE}")
    _check_chunk(view.chunked_prefill_size, page_size)
    check_start(
        config,
        server=server_name(view.port, view.dist_init_addr, view.nnodes),
        last=last_rank(view),
        machines=view.nnodes,
        machine=view.node_rank,
        memory_saver=view.enable_memory_saver,
    )


def _check_chunk(chunk: int | None, page_size: int) -> None:
    if chunk is not None and chunk > 0 and chunk % page_size:
        raise ConfigError(
            f"--page-size: {page_size} does not divide --chunked-prefill-size {chunk}; use {chunk} // n for some n"
        )


def check_release() -> None:
    """Raise ConfigError where another release of SGLang is installed than this version is for. Hooks are checked by
    what they look like; what others do was read, and tested, in that one alone."""
    installed, required = version("sglang"), required_sglang()
    if required is not None and installed != required:
        raise ConfigError(
            f"SGLang {installed} is installed, and this version of swift-tiers is for {required}: "
            f"pip install --force-reinstall sglang=={required}, or start without --enable-swift-tiers"
        )


def _exit(error: Exception) -> NoReturn:
    print(f"swift-tiers: error: {error}", file=sys.stderr)  # noqa: T201 - what a command line does
    raise SystemExit(2)
