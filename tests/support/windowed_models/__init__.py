"""A package of models for SGLang, as `SGLANG_EXTERNAL_MODEL_PACKAGE` names one."""


def register() -> None:
    """What SGLang does with such a package, where it is imported already."""
    from sglang.srt.models.registry import ModelRegistry, import_model_classes

    ModelRegistry.models.update(import_model_classes(__name__))
