"""The one exception a user is meant to see."""


class UserError(Exception):
    """Something the user gave cannot be used.

    The message is one line that names the setting or file, the value found and what would be accepted. The command
    line prints it without a traceback and ends with exit code 2.
    """


class RunStopped(Exception):
    """A run cannot go on for a reason outside of it (disk full, workers that keep dying): one line, exit code 1.

    What was recorded up to the last checkpoint can be continued.
    """
