"""What opens above a view: help, a question, a confirmation."""

from .ask import AskScreen
from .commands import CommandsScreen
from .confirm import ConfirmScreen
from .help import HelpScreen
from .outcome import OutcomeScreen

__all__ = ["AskScreen", "CommandsScreen", "ConfirmScreen", "HelpScreen", "OutcomeScreen"]
