"""From a key or a typed command to a server and back: ask, confirm, send, show what became of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
from textual.message import Message

from swift_tiers.radix_tiering.base.errors import CommandUnclearError, SwiftTiersError
from swift_tiers.radix_tiering.bus.contract.commands import COMMANDS, AnyCommand, CommandRefusedError
from swift_tiers.radix_tiering.bus.contract.views import CommandView
from swift_tiers.radix_tiering.bus.hear.command_words import make_command, name_of, usage

from .application import Application
from .model.actions import ActionError
from .screens.ask import AskScreen
from .screens.confirm import ConfirmScreen
from .screens.outcome import OutcomeScreen
from .session import Session
from .views.parts.view import OfferedAction
from .widgets.notice import Notice


class CommandAnswered(Message):
    """A command has been answered, could not be sent, or was sent and nobody knows what became of it."""

    def __init__(self, what: str, outcome: CommandView | None, state: str = "", problem: str = "") -> None:
        """`state` and `problem`: where there is no outcome, what is known and why."""
        super().__init__()
        self.what = what
        self.outcome = outcome
        self.state = outcome.state if outcome is not None else state
        self.problem = problem


class Steering:
    """One of each console. On the app's thread but for sending."""

    def __init__(self, session: Session, app: Application, said: Notice) -> None:
        self._session = session
        self._app = app
        self._said = said

    def begin(self, offer: OfferedAction) -> None:
        """Ask for what it lacks, then for a yes."""
        if self._session.readonly:
            self._app.tell("readonly: nothing is steered from here", bad=True)
            return
        if offer.prompt:
            self._ask(offer, "", "")
        else:
            self._confirm(offer, "")

    def _ask(self, offer: OfferedAction, value: str, problem: str) -> None:
        """For what the offer lacks; again, with what was wrong with it, until it can be understood."""

        def typed(said: str | None) -> None:
            if said is not None:
                self._confirm(offer, said.strip())

        self._app.push_screen(AskScreen(offer.what, offer.prompt, value, problem), typed)

    def typed(self, words: Sequence[str]) -> None:
        """`control [SERVER] COMMAND VALUES`. Raises ActionError."""
        if self._session.readonly:
            raise ActionError("readonly: nothing is steered from here")
        servers = [state.server.server for state in self._session.moment.servers if state.server.alive]
        names = [name_of(kind) for kind in COMMANDS]
        if words[0] in servers and len(words) > 1:
            server, words = words[0], words[1:]
        elif words[0] in names:
            here = self._session.navigation.server or (servers[0] if len(servers) == 1 else None)
            if here is None:
                raise ActionError(f"control: say which server: {', '.join(servers) or 'none is alive'}")
            server = here
        else:
            raise ActionError(f"control: usage: control [SERVER] COMMAND; servers: {', '.join(servers)}")
        try:
            command = make_command(words[0], words[1:])
        except CommandRefusedError as error:
            raise ActionError(str(error)) from None
        what = f"{' '.join(words)} at {server}"
        self._confirm(OfferedAction("", "", server, what, (type(command).__doc__ or "").strip(), lambda _: command), "")

    def lines(self, servers: Sequence[str]) -> list[str]:
        """How commands are written, for suggestions."""
        spelled = [usage(kind) for kind in COMMANDS]
        return [*spelled, *(f"{server} {line}" for server in servers for line in spelled)]

    def _confirm(self, offer: OfferedAction, typed: str) -> None:
        try:
            command = offer.make(typed)
        except (CommandRefusedError, ValueError) as error:
            if offer.prompt:
                self._ask(offer, typed, str(error))
            else:
                self._app.tell(str(error), bad=True)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._send(offer, command)

        words = f"{offer.server}: {msgspec.json.encode(command).decode()}"
        value = f" {typed}" if typed else ""
        self._app.push_screen(ConfirmScreen(f"{offer.what}{value}", offer.effect, words), answered)

    def _send(self, offer: OfferedAction, command: AnyCommand) -> None:
        self._app.tell(f"sent: {offer.what}")

        def send() -> None:
            self._app.post_message(self._command(offer, command))

        threading.Thread(target=send, name="console-command", daemon=True).start()

    def _command(self, offer: OfferedAction, command: AnyCommand) -> CommandAnswered:
        """Send it and wait. Any thread."""
        try:
            return CommandAnswered(offer.what, self._session.feed.command(offer.server, command))
        except CommandUnclearError as error:
            return CommandAnswered(offer.what, None, error.state, str(error))
        except SwiftTiersError as error:
            return CommandAnswered(offer.what, None, "not done", str(error))
        except Exception as error:  # noqa: BLE001 - the operator must hear of it, whatever it was
            # It may have come after the command was sent.
            return CommandAnswered(offer.what, None, "not known", f"{type(error).__name__}: {error}")

    def show(self, became: CommandAnswered) -> None:
        """What was acknowledged in full is a word; what was not stays on the screen until it was read."""
        self._said.silence()  # that it was sent
        outcome = became.outcome
        title = f"{became.state.upper()}: {became.what}"
        if outcome is None:
            self._app.push_screen(OutcomeScreen(title, [became.problem], bad=True))
            return
        lines = [f"{rank}: {said}" for rank, said in sorted(outcome.ranks.items())]
        if outcome.state == "done":
            self._app.tell(f"done: {became.what}{'; ' + '; '.join(lines) if lines else ''}")
            return
        reason = [outcome.reason] if outcome.reason else []
        self._app.push_screen(OutcomeScreen(title, [*reason, *lines], bad=True))
