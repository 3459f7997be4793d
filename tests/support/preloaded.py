"""What a server imports before it does anything: most of the time that its start takes.

Loaded once, by the process that `support.forked` forks the others from. Nothing here may start a thread.
"""

import gc

import sglang.launch_server
import sglang.srt.entrypoints.http_server
import sglang.srt.managers.scheduler
import sglang.srt.model_executor.model_runner
import sglang.srt.models.registry  # noqa: F401 - for being loaded, as the others

import swift_tiers.sglang_ext.plugin  # noqa: F401 - the same

gc.collect()
gc.freeze()  # children do not copy these pages by counting what is on them
