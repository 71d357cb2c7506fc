"""The one exception for a mistake in what the user gave: config, data, checkpoint, folder."""


class InputError(ValueError):
    """What the user gave cannot be used.

    The message names the key, or the file and line, says what is wrong with it and what would be right. The
    command line prints it without a traceback and exits with code 2.
    """
