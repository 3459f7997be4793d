"""The threads that look and ask, so that the screen never waits for Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.message import Message

from swift_tiers.radix_tiering.base.errors import SwiftTiersError
from swift_tiers.radix_tiering.base.runner import THREADS

from .feeds.feed import Feed, Look, ViewAnswers, ViewQuestion

#: Between two looks, seconds: bounds, and the default.
SLOWEST, FASTEST, USUAL = 60.0, 0.1, 0.5
#: Between two askings of the same, seconds: servers answer about once a second.
ASK_SECONDS = 1.0
#: How old requests may be where nobody looks at them, seconds: they are counted there.
REQUESTS_SECONDS = 2.0


class LookTaken(Message):
    """A look came, after a jump in a recording or not."""

    def __init__(self, look: Look, at: float) -> None:
        super().__init__()
        self.look = look
        self.at = at  # by the console's clock


class Lost(Message):
    """There is none, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class QuestionAnswered(Message):
    """Servers were asked."""

    def __init__(self, question: ViewQuestion, answers: ViewAnswers, failed: str, at: float) -> None:
        super().__init__()
        self.question = question
        self.answers = answers
        self.failed = failed
        self.at = at


class Looker:
    """Two threads. `post` takes messages from any thread."""

    def __init__(
        self,
        feed: Feed,
        post: Callable[[Message], object],
        interval: float = USUAL,
        monotonic: Callable[[], float] = THREADS.boot_time,
    ) -> None:
        self._feed = feed
        self._post = post
        self._monotonic = monotonic
        self.interval = interval
        self._questions: tuple[ViewQuestion, ...] = ()
        self._ended = threading.Event()
        self._look_now = threading.Event()
        self._ask_now = threading.Event()
        # Daemons: a Redis that does not answer must not keep a terminal that the operator wants back.
        self._threads = [
            threading.Thread(target=self._run_looks, name="console-look", daemon=True),
            threading.Thread(target=self._run_questions, name="console-ask", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._look_now.set()
        self._ask_now.set()

    def look_soon(self) -> None:
        """Not only when the time has come."""
        self._look_now.set()

    def set_interval(self, seconds: float) -> None:
        self.interval = max(FASTEST, min(SLOWEST, seconds))
        self._look_now.set()

    def set_questions(self, questions: tuple[ViewQuestion, ...]) -> None:
        """What the view on the screen wants to know, from now on."""
        if questions != self._questions:
            self._questions = questions
            self._ask_now.set()

    def _run_looks(self) -> None:
        while not self._ended.is_set():
            started = self._monotonic()
            try:
                look = self._feed.look()
            except SwiftTiersError as error:
                self._say(Lost(str(error)))
            except Exception as error:  # noqa: BLE001 - a fault of ours is shown like a Redis that is lost; it may heal
                self._say(Lost(f"{type(error).__name__}: {error}"))
            else:
                self._say(LookTaken(look, self._monotonic()))
            self._look_now.wait(max(0.0, self.interval - (self._monotonic() - started)))
            self._look_now.clear()

    def _run_questions(self) -> None:
        while not self._ended.is_set():
            for question in self._questions:
                answers, failed = ViewAnswers(), ""
                try:
                    answers = self._feed.ask(question)
                except SwiftTiersError as error:
                    failed = str(error)
                except Exception as error:  # noqa: BLE001 - likewise
                    failed = f"{type(error).__name__}: {error}"
                self._say(QuestionAnswered(question, answers, failed, self._monotonic()))
                if self._ended.is_set():
                    return
            self._ask_now.wait(ASK_SECONDS)
            self._ask_now.clear()

    def _say(self, message: Message) -> None:
        if not self._ended.is_set():
            self._post(message)
