"""What a server imports before it does anything, and what its plugins change there: most of the time that its start
takes. With all models imported SGLang looks for each hook's target through some 9,000 modules.

Loaded once, by the process that `support.forked` forks the others from. Nothing here may start a thread.
"""

import gc

import sglang.launch_server
import sglang.srt.entrypoints.http_server
import sglang.srt.managers.scheduler
import sglang.srt.model_executor.model_runner
import sglang.srt.models.registry  # noqa: F401 - for being loaded, as the others
from sglang.srt.plugins import load_plugins

import swift_tiers.sglang_ext.way.cache  # noqa: F401 - the same

load_plugins()  # after the scheduler's module: a process that has loaded it is what our hooks are for

gc.collect()
gc.freeze()  # children do not copy these pages by counting what is on them
