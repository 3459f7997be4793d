"""SwiftKV: models of whose prompts most layers compute nothing, made from models that you have.

cost MODEL says what a prompt costs by formulas, and what a token of KV takes, at several shares of layers. convert
MODEL makes a SwiftKV model, the later layers' keys and values fitted to the original ones. distill MODEL trains those
layers' projections to answer as the original does; what was begun goes on where it stopped, and `torchrun` lets several
GPUs do it together. eval MODEL says how far it
still is from the original. docs/swiftkv.md has the rest.
"""

from __future__ import annotations

import argparse

from ...base.arguments import path_argument

SUMMARY = "models that prefill half their layers: what they cost, and how to make one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_cost(actions.add_parser("cost", help="floating-point operations of a prompt, and bytes of KV, by formulas"))
    _add_convert(actions.add_parser("convert", help="make a SwiftKV model, its projections fitted by least squares"))
    _add_distill(actions.add_parser("distill", help="train its projections to answer as the original does"))
    _add_eval(actions.add_parser("eval", help="how far it is from the original, on text"))


def _add_cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=path_argument, metavar="MODEL", help="directory of the model, or its config.json")
    parser.add_argument(
        "--tokens", type=int, default=8192, help="of the prompt, at whose end attention costs most (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=path_argument, metavar="MODEL", help="directory of a Llama or a Qwen 2, 2.5 or 3")
    parser.add_argument("--out", type=path_argument, required=True, metavar="DIR", help="where the new model goes")
    parser.add_argument(
        "--layers",
        metavar="SHARE",
        help="later layers, which prompts skip: a share (25%%) or a number (default: 50%%; of a Qwen, 25%%)",
    )
    parser.add_argument(
        "--across", type=int, default=1, metavar="N", help="later layers that share keys and values (%(default)s)"
    )
    parser.add_argument(
        "--fit-tokens", type=int, default=24_576, help="tokens of text that are fitted to; 0: no fit (%(default)s)"
    )
    _add_text(parser)


def _add_distill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=path_argument, metavar="MODEL", help="directory that `convert` has made")
    parser.add_argument("--out", type=path_argument, required=True, metavar="DIR", help="where the trained model goes")
    parser.add_argument("--epochs", type=float, default=2.0, help="times that the text is read (%(default)g)")
    parser.add_argument("--minutes", type=float, help="train no longer than this, in all")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="at its highest (%(default)g)")
    parser.add_argument("--weight-decay", type=float, default=0.05, help="of AdamW (%(default)g)")
    parser.add_argument("--warm-up", type=float, default=0.05, help="share of the training (%(default)g)")
    parser.add_argument("--temperature", type=float, default=2.0, help="of the distillation (%(default)g)")
    parser.add_argument("--batch", type=int, default=4, help="windows of a step (%(default)s)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step: more of the same (%(default)s)")
    parser.add_argument("--save-every", type=float, default=5.0, metavar="MINUTES", help="(%(default)g)")
    parser.add_argument(
        "--early-exit",
        action="store_true",
        help="train a second output matrix too, for an early exit of answers' tokens",
    )
    parser.add_argument(
        "--also",
        type=path_argument,
        action="append",
        metavar="FILE|DIR",
        help="text that the curve is measured on too; none of it is trained on",
    )
    parser.add_argument("--seed", type=int, default=0, help="decides the order of the windows (%(default)s)")
    _add_text(parser)


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=path_argument, metavar="MODEL", help="directory that `convert` or `distill` has made"
    )
    parser.add_argument("--windows", type=int, default=32, help="of text that no fit has seen (%(default)s)")
    parser.add_argument("--lm-eval", action="append", metavar="TASK", help="a task of lm-eval, too; again for more")
    parser.add_argument("--lm-eval-tasks", metavar="DIR", help="a folder with more tasks of lm-eval")
    parser.add_argument("--lm-eval-limit", type=int, metavar="N", help="questions of each task (default: all)")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    _add_text(parser)


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text",
        type=path_argument,
        action="append",
        metavar="FILE|DIR",
        help="what is read, again for more; of a directory, its .txt, .md, .rst and .py (default: Python's manual)",
    )
    parser.add_argument("--length", type=int, default=512, help="tokens of a window (%(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what computes it (%(default)s)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="computed in (default: what is faster here)",
    )


def run(options: argparse.Namespace) -> int:
    if options.action == "cost":
        from .cost_command import run_cost as action
    elif options.action == "convert":
        from .convert import run_convert as action
    elif options.action == "distill":
        from .distill import run_distill as action
    else:
        from .evaluate import run_eval as action
    return action(options)
