"""A package of models for SGLang (`SGLANG_EXTERNAL_MODEL_PACKAGE`)."""
