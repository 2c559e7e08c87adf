"""The program ``planner``: builds the commands from the table of options and maps failures to exit codes.

Exit codes: 0 done, 1 bug (with a traceback), 2 usage, 3 an input file is wrong, 4 nothing fits, 5 the calibration does
not cover the request, 130 interrupted. A reader that closes the pipe early has what it wanted: 0, quietly.
A command is ``run`` of the module of its name in ``planner.cli``, or a function there that _MODULES names, imported
only when it is called.
"""

from __future__ import annotations

import errno
import gc
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from planner import __version__
from planner.cli.options import COMMANDS, OPTIONS, PANELS, Command, Option, panel_of
from planner.cli.streams import answered, note, open_streams, silence, terminated_as_interrupted, write_document
from planner.errors import ParameterError, PlannerError, UnknownNameError, UsageError

INTERRUPTED = 130
Runner = Callable[[str, Mapping[str, Any]], None]
"""Takes the name of a command and its options."""


def _as_text(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command, made to take their values as they are typed."""

    # planner.cli.parsing reads them; typer would import pydantic and build a validator for each.
    def value_of(parameter: Any, context: typer.Context, value: Any) -> Any:
        return value if parameter.callback is None else parameter.callback(context, parameter, value)

    for one in parameters:
        vars(one)["process_value"] = partial(value_of, one)
    return parameters


class _TextCommand(TyperCommand):
    """A command whose options stay text; many of them stand in panels in its help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_text(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params = self.get_params(ctx)
        if len(params) <= MOST_IN_ONE_LIST:
            super().format_options(ctx, formatter)
            return
        own = {OPTIONS[one.name].flag for one in params if one.name in OPTIONS}
        for title, (example, _) in PANELS.items():
            records = [one.get_help_record(ctx) for one in params if panel_of(one.name) == title]
            words = [part for part in example.split("--")[1:] if f"--{part.split()[0]}" in own]
            if records:
                with formatter.section(title):
                    formatter.write_dl([("Example:", "--" + "--".join(words))])
                    formatter.write_dl(records)


MOST_IN_ONE_LIST = 30
"""Options of a command whose help is one list."""


class _TextGroup(TyperGroup):
    """Commands, after options that stay text."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_text(super().get_params(ctx))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"planner {__version__}\n")
        raise typer.Exit


def _program(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _parameter(option: Option, command: str) -> inspect.Parameter:
    kind: Any = bool if option.switch else str | None if option.positional else list[str] | None
    parameter = (
        typer.Argument(metavar=option.metavar_of(command), help=option.text(command), show_default=False)
        if option.positional
        else typer.Option(
            *filter(None, (option.short, option.flag)),
            metavar=option.metavar_of(command) or None,
            help=option.text(command),
            show_default=False,
        )
    )
    default = False if option.switch else None
    annotation = Annotated[kind, parameter]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _callback(command: Command) -> Callable[..., None]:

    def call(command_context: typer.Context, **values: Any) -> None:
        options = {name: value for name, value in values.items() if value not in (None, False, [])}
        for name, value in options.items():
            if isinstance(value, list) and not OPTIONS[name].repeats(command.name):
                if len(value) > 1:
                    raise ParameterError(OPTIONS[name].flag, "given once", " and ".join(value))
                options[name] = value[0]
        command_context.obj(command.name, options)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("command_context", kind, annotation=typer.Context)]
    parameters += [_parameter(OPTIONS[name], command.name) for name in command.options]
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _program_of(commands: Sequence[Command]) -> TyperGroup:
    app = typer.Typer(
        cls=_TextGroup,
        name="planner",
        help="Pick node count, sub-batch, precision and mode that finish a training epoch soonest.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_program)
    for command in commands:
        app.command(command.name, cls=_TextCommand, help=command.help)(_callback(command))
    return cast("TyperGroup", typer.main.get_command(app))


def _usage(error: Exception, arguments: Sequence[str]) -> PlannerError:
    """Return what the parser of the command line says, in the sentence form of all errors."""
    commands = {one.name: one for one in COMMANDS}
    command = next((commands[word] for word in arguments if word in commands), None)
    see = f"'planner {command.name} --help'" if command else "'planner --help'"
    message = str(error).rstrip(".")
    option = getattr(error, "option_name", "")
    if option and hasattr(error, "possibilities"):
        flags = [OPTIONS[name].flag for name in command.options] if command else ["--version", "--help"]
        return UnknownNameError("option", option, flags, f"See {see}.")
    if option and message.endswith("requires an argument"):
        return UsageError(f"{option} must be given with a value, got nothing; see {see}")
    if unknown := _UNKNOWN_COMMAND.match(message):
        return UnknownNameError("command", unknown[1], commands)
    return UsageError(f"the command line must be as {see} says, got {message.removeprefix('Got ')}")


_UNKNOWN_COMMAND = re.compile("No such command '(.*?)'")


def run_command(name: str, options: Mapping[str, Any]) -> None:
    """Run a command; all but measuring run no product of matrices that is worth a thread of NumPy's library."""
    if name != "calibrate":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    module = _MODULES.get(name, name)
    function = "run" if module == name else name.replace("-", "_")
    getattr(import_module(f"planner.cli.{module}"), function)(options)


_MODULES = dict.fromkeys(("explain", "render", "report"), "kept")
_MODULES |= {"search-worker": "suggest", "sweep": "suggest", "verify": "calibrate"}
"""Commands that are a function of their own name in a module of another."""


def _system_error(error: OSError) -> PlannerError:
    """Return what the system refuses: standard output, or a folder that is gone; files report their own errors."""
    if error.filename is None and error.errno == errno.ENOENT:
        return ParameterError("the working folder", "there", error.strerror, "change to a folder that exists")
    if error.filename is not None or error.errno not in _UNWRITABLE:
        raise error
    silence(sys.stdout)
    return ParameterError("standard output", "writable", error.strerror)


_UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF)


def _fail(error: PlannerError, arguments: Sequence[str] = ()) -> int:
    """Say an error; with --json as a document too, where the command has written none."""
    note(str(error))
    if "--json" in arguments and not answered.is_set():
        from planner.formats.summaries import error_document  # noqa: PLC0415 - heavier than the command line

        write_document(error_document(error))
    return error.exit_code


USAGE = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The parser's base of usage errors: of click, or of the click inside typer."""


def main(arguments: Sequence[str] | None = None, run: Runner = run_command) -> int:
    """Run the program on ``arguments`` (default: those of the process) and return the exit code."""
    gc.set_threshold(100_000)  # an answer takes less than a second and keeps most of what it reads: little is garbage
    open_streams()
    answered.clear()
    code = _code(sys.argv[1:] if arguments is None else arguments, run)
    try:
        sys.stdout.flush()  # so that a closed or full output is noticed here
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        return _fail(_system_error(error))
    return code


def _code(arguments: Sequence[str], run: Runner) -> int:
    words = list(arguments) or ["--help"]
    asked = [one for one in COMMANDS if one.name == words[0]]  # where a command comes first, it alone is built
    try:
        with terminated_as_interrupted():
            program = _program_of(asked or COMMANDS)
            with program.make_context("planner", words, obj=run) as context:
                program.invoke(context)
    except typer.Exit as ending:
        return int(ending.exit_code)
    except PlannerError as error:
        return _fail(error, words)
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        return _fail(_system_error(error))
    except USAGE as error:
        return _fail(_usage(error, words), words)
    return 0
