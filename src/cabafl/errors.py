"""Exceptions whose message is written for the user."""


class UserError(Exception):
    """Invalid input: a setting, a file or a combination of them.

    The message is one line that names the setting or file, the value given and what is accepted. The command line
    prints it without a traceback and exits with code 2.
    """


class RunStopped(Exception):
    """A run cannot continue for an external reason, such as a full disk or workers that keep dying.

    The message is one line; the command line exits with code 1. The run can be resumed from its last checkpoint.
    """
