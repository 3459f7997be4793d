"""Weights that change while SGLang's real scheduler serves. These functions run in the scheduler's process; `s` is its
`StepScheduler`."""

from __future__ import annotations

import contextlib


@contextlib.contextmanager
def other_weights(s):
    """`update(flush=...)` in between gives the model other weights, as trainers do: by calls of SGLang's in a session.
    Its own come back at the end."""
    import torch
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

    worker = s.scheduler.tp_worker
    model = worker.model_runner.model
    parameters = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    name = "model.embed_tokens.weight"
    # SGLang's pickling knows tensors of GPUs only.
    tensors = [(name, -parameters[name].detach())]
    own = {one: parameter.detach().clone() for one, parameter in parameters.items()}

    def update(*, flush):
        request = UpdateWeightsFromTensorReqInput(serialized_named_tensors=[b""], flush_cache=flush)
        return s.scheduler.weight_updater.update_weights_from_tensor(request).success

    worker.deserialize_own_rank = lambda serialized: tensors
    try:
        with torch.no_grad():  # as SGLang's event loops run
            yield update
    finally:
        del worker.deserialize_own_rank
        for one, parameter in parameters.items():
            parameter.data.copy_(own[one])
        s.step()
        assert s.scheduler.flush_cache()


def sessions(s):
    """How a session of weight updates is begun, and how it is ended; whether it was."""
    from sglang.srt.managers.io_struct import BeginWeightUpdateReqInput, EndWeightUpdateReqInput

    updater = s.scheduler.weight_updater
    return (
        lambda: updater.begin_weight_update(BeginWeightUpdateReqInput()).success,
        lambda: updater.end_weight_update(EndWeightUpdateReqInput()).success,
    )
