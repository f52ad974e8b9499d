r"""# Checking an answer

> A check calls what the reader wrote, and says what is wrong with it and where to look.

A lab leaves blanks, and below each blank there is a check. Here is one, with the function
that it checks:

```python
@check
def bytes_of_adamw(given):
    expect(
        given(1000) == 16_000,
        tell("1,000 parameters take 16,000 bytes, not {found:,}.", found=given(1000)),
        look=tell("Which four numbers does AdamW store for a parameter?"),
    )
```

A cell of the notebook runs `bytes_of_adamw()`. The check looks up the reader's variable
of the same name. If the answer is right, it prints one line. Otherwise it raises
[`NotYet`](#NotYet), and the notebook shows two sentences instead of a traceback.

Three other things may happen, and each has sentences of its own: the blank is still
empty, the reader's function raises an error, or it returns something that cannot be
compared. An autograder such as nbgrader sees a cell that failed, in each case. Only the
line of the blank itself counts as an empty blank: PyTorch raises the same class of error,
such as for an operation that a device does not have.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from shardbook.labs.rank_outcomes import Raised, RanksFailed
from shardbook.labs.reader_lines import frames_of, is_blank_line, own
from shardbook.labs.words import tell

__all__ = ["Check", "NotYet", "check", "expect"]


class NotYet(Exception):
    """An answer that is not right yet.

    :param what: what is wrong, in one or two sentences
    :param look: where to look for the reason
    """

    def __init__(self, what: str, look: str = "") -> None:
        self.what, self.look = what, look
        super().__init__("\n".join(filter(None, (what, look))))

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback."""
        return [f"✗ {self.what}", *([f"→ {self.look}"] if self.look else [])]


def expect(condition: object, what: str, look: str = "") -> None:
    """Go on if the condition holds.

    :raises NotYet: otherwise

    >>> expect(2 + 2 == 4, "Two and two are four.")
    >>> expect(2 + 2 == 5, "Two and two are not five.", look="Count on your fingers.")
    Traceback (most recent call last):
        ...
    shardbook.labs.checks.NotYet: Two and two are not five.
    Count on your fingers.
    """
    if not condition:
        raise NotYet(what, look)


class Check:
    """A check of one exercise.

    :param function: calls `expect`; may return a sentence for a right answer. Its
        parameters are the names of the reader's variables. A parameter `given` means
        the variable that is named like the check
    """

    def __init__(self, function: Callable[..., str | None]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__
        parameters = inspect.signature(function).parameters
        self.names = [self.name if each == "given" else each for each in parameters]

    def __call__(self, *given: Any) -> None:
        """Check the answers, by default those of the calling cell.

        :raises NotYet: if an answer is missing or not right
        """
        answers = given or self.found(sys._getframe(1).f_globals)
        for name, answer in zip(self.names, answers, strict=True):
            if is_blank(answer):
                raise blank(name)
        try:
            praise = self.function(*answers)
        except NotYet:
            raise
        # The cell shows the sentences alone, and not how they were found. A script that an
        # answer has left would end as if all answers were right.
        except (Exception, SystemExit) as error:
            raise self.sentence(error) from None
        print("✓", praise or tell("{name} is right.", name=self.name))

    def found(self, variables: Mapping[str, Any]) -> list[Any]:
        """The reader's answers among the variables of a cell."""
        for name in self.names:
            if name not in variables:
                raise blank(name)
        return [variables[name] for name in self.names]

    def sentence(self, error: BaseException) -> NotYet:
        """An error that the answer has caused, in words."""
        name = ", ".join(self.names)
        if is_blank_line(error):
            return blank(name)
        if isinstance(error, RanksFailed):
            first = error.outcomes[0].failure
            if isinstance(first, Raised) and first.blank:
                return blank(name)
            # A check that runs on the ranks calls `expect` there.
            if isinstance(first, Raised) and first.kind == NotYet.__name__:
                what, _, look = first.text.partition("\n")
                return NotYet(what, look)
            return NotYet(tell("{name} fails on the ranks:", name=name), str(error))
        said = f"{type(error).__name__}: {error}"
        lines = own(frames_of(error.__traceback__))
        if lines:
            return NotYet(
                tell("{name} raises {error}", name=name, error=said),
                tell("The error was raised here:") + f"\n{lines[-1]}",
            )
        return NotYet(
            tell("{name} cannot be checked: {error}", name=name, error=said),
            tell("Which arguments should {name} take, and what return?", name=name),
        )


def check(function: Callable[..., str | None]) -> Check:
    """Make a check of a function that calls [`expect`](#expect)."""
    return Check(function)


def blank(name: str) -> NotYet:
    return NotYet(
        tell("{name} is still blank.", name=name),
        tell("Fill in the cell above, and run it before this one."),
    )


def is_blank(answer: object) -> bool:
    """Whether the reader has written nothing yet.

    >>> def empty():
    ...     "What it should do."
    ...     ...
    >>> is_blank(empty), is_blank(...), is_blank(0), is_blank(len)
    (True, True, False, False)
    """
    if not isinstance(answer, FunctionType):
        return answer is ...
    # Such a function consists of a single action: it returns `None`.
    marks = {"RESUME", "NOP", "CACHE"}
    code = [each for each in dis.get_instructions(answer) if each.opname not in marks]
    return len(code) <= 2 and code[0].argval is None
