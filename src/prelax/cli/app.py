"""The program ``prelax``: its commands in one place, and how every one of them ends."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

import prelax
from prelax.cli import about, detecting, drawing, evaluating, relaxing, showing, training, transferring
from prelax.cli.speech import anything_printed, complain, state, warnings_told
from prelax.errors import PrelaxError
from prelax.threads import wait_briefly

LETTERS = 400  # of a word or a path that an error shows
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, wherever this typer keeps it

app = typer.Typer(
    name="prelax",
    help="Image representations learnt without labels, from augmentations that keep meaning and those that change it.",
    epilog="Start with `prelax demo`, or with images of your own: `prelax pretrain folder data.root=FOLDER`. "
    "Each command has an example under --help.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=False,
)
for group in (training, evaluating, transferring, detecting, relaxing, showing, drawing, about):
    group.register(app)


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="With --version: the environment too.")] = False,
) -> None:
    if version:
        print(f"prelax {prelax.__version__}")
        if verbose:
            about.print_environment()
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit status: 0 done, 2 the user's mistake, 130 interrupted, 1 ours."""
    wait_briefly()
    state.reset()
    words = list(sys.argv[1:] if arguments is None else arguments)
    with anything_printed():
        return outcome(words)


def outcome(words: Sequence[str]) -> int:
    """The exit status of a command, however it ends."""
    try:
        with warnings_told():
            status = app(words, prog_name="prelax", standalone_mode=False)
        if sys.stdout is not None:  # it is None where it was closed before we began
            sys.stdout.flush()
        if status == 130:  # what typer makes of Ctrl-C
            return interrupted()
        return status if isinstance(status, int) else 0
    except PrelaxError as error:
        return fail(str(error), 2)
    except USAGE_ERROR as error:
        said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        return fail(f"{said}{as_setting(said, words)} (see `prelax {command_of(words)}--help`)", 2)
    except (KeyboardInterrupt, typer.Abort):
        return interrupted()
    except typer.Exit as error:
        return error.exit_code
    except SystemExit as error:  # how typer ends --show-completion
        return error.code if isinstance(error.code, int) else 0
    except BrokenPipeError:  # the reader of a pipe left, as in `prelax list recipes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) and not error.filename:
            return fail(f"cannot write its output: {error.strerror}; free some space, or send it elsewhere", 2)
        if isinstance(error, OSError) and error.filename and error.strerror:  # no right to read it, too long a name
            return fail(f"cannot use {error.filename}: {error.strerror}; mend that, or give another path", 2)
        if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError) or "t allocate memory" in said:
            return fail(f"there is too little memory ({said[:120]}); lower train.batch_size or the sizes asked for", 2)
        return fail(f"unexpected {type(error).__name__}: {said} (a fault of prelax; --debug shows where)", 1)


def interrupted() -> int:
    complain(f"interrupted{state.afterwards}")
    return 130


def fail(line: str, status: int) -> int:
    """One line on standard error, and the traceback only when asked for."""
    if state.debug:
        traceback.print_exc()
    complain(" ".join(word if len(word) <= LETTERS else f"{word[:LETTERS]}..." for word in line.split()))
    return status


def as_setting(said: str, words: Sequence[str]) -> str:
    """What was meant by an option that is a setting: ``; settings are written without dashes: train.epochs=2``."""
    from prelax.config import keys, nearest

    option = said.removeprefix("No such option: ")
    if option == said or not option.startswith("--") or "pretrain" not in words:
        return ""
    name, known = option[2:].replace("-", "_"), keys()
    close = nearest(name, known).partition("did you mean ")[2].rstrip("?")
    key = name if name in known else close
    typed = next((place for place, word in enumerate(words) if word.split("=")[0] == option), None)
    if not key or typed is None:
        return ""
    value = words[typed].partition("=")[2] or next(iter(words[typed + 1 : typed + 2]), "")
    return (
        f"; settings are written without dashes: {key}={'...' if value in ('', option) or value[0] == '-' else value}"
    )


def command_of(words: Sequence[str]) -> str:
    """``evaluate `` of ``prelax evaluate ...``, for the line that points to its help."""
    names = {command.name for command in app.registered_commands}
    return next((f"{word} " for word in words if word in names), "")
