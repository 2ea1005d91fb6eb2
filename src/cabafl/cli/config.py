"""`cabafl config`"""

from typing import Annotated

import typer

from cabafl.cli.arguments import ExperimentFile, Settings
from cabafl.cli.console import console
from cabafl.errors import UserError


def config(
    file: ExperimentFile = None,
    settings: Settings = None,
    paper: Annotated[
        str | None, typer.Option(help="A setting of the paper instead of a file, e.g. cifar10-cnn-beta0.1.")
    ] = None,
) -> None:
    """Print the complete experiment file with a comment on every key."""
    from cabafl.checked import find_method, load_checked
    from cabafl.cli.run import file_and_settings
    from cabafl.paper.settings_files import paper_file
    from cabafl.toml import experiment_toml

    given, words = file_and_settings(file, settings)
    if paper is not None:
        if given is not None:
            raise UserError(f"--paper = {paper!r}: not together with the file {given}; accepted: one of them")
        given = paper_file(paper)
    experiment = load_checked(given, words)
    _, parameters = find_method(experiment)
    console.print(experiment_toml(experiment, parameters, comments=True), end="", soft_wrap=True)
