"""The one exception for a mistake in what the user gave: config, data, checkpoint, folder."""


class InputError(ValueError):
    """What the user gave cannot be used.

    The message names the key, or the file and line, says what is wrong with it and what would be right. The
    command line prints it without a traceback and exits with code 2.
    """


def input_error_behind(error: BaseException | None) -> InputError | None:
    """The user's mistake, also where the config parser wrapped it into an error of its own."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error
