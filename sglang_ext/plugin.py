"""The entry point of group `sglang.srt.plugins`: SGLang calls `load` once in each of its processes."""

from __future__ import annotations

import sys
import traceback


def load() -> None:
    """Add our arguments and hooks. In a process that uses neither this costs a few milliseconds."""
    from swift_tiers.radix_tiering.base.errors import SwiftTiersError

    try:
        _install()
    except Exception as error:
        # SGLang logs and skips a plugin that raises, and would then call our flag unknown.
        if any(word.startswith("--enable-swift-tiers") for word in sys.argv):
            if not isinstance(error, SwiftTiersError):
                traceback.print_exc()
            print(f"swift-tiers: error: {error}", file=sys.stderr)  # noqa: T201 - before any logging is set up
            raise SystemExit(2) from None
        raise


def _install() -> None:
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookType

    from .arguments import (
        SwiftServerArgs,
        check_arguments,
        check_capabilities,
        check_model_arguments,
        check_modes_arguments,
        check_swiftkv_backends,
        check_tree,
        prepare_swiftkv_arguments,
        translate_arguments,
    )
    from .hooks import Hook, apply_hooks, install_scheduler_hooks
    from .models import configurations
    from .platform import cpu_attention

    arguments = Hook(
        "sglang.srt.server_args.ServerArgs", HookType.REPLACE, SwiftServerArgs, (), "add our two fields to the record"
    )
    apply_hooks([arguments])
    register_resolution_hook("handle_hardware_runtime_validation")(check_arguments)
    register_resolution_hook("handle_missing_default_values")(translate_arguments)
    register_resolution_hook("handle_model_specific_adjustments")(check_model_arguments)
    register_resolution_hook("handle_hicache")(check_tree)
    register_resolution_hook("handle_speculative_decoding")(check_modes_arguments)
    register_resolution_hook("handle_cuda_graph_config")(prepare_swiftkv_arguments)
    register_resolution_hook("handle_model_capability_adjustments")(check_capabilities)
    register_resolution_hook("handle_other_validations")(check_swiftkv_backends)
    engine = sys.modules.get("sglang.srt.entrypoints.engine")
    if engine is not None:
        # A class attribute, which replacing a class in modules does not reach.
        engine.Engine.server_args_class = SwiftServerArgs
    cpu_attention.register()
    configurations.register()
    install_scheduler_hooks()
