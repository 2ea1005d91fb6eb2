"""`cabafl config`"""

from cabafl.cli.arguments import ExperimentFile, Settings
from cabafl.cli.console import console


def config(file: ExperimentFile = None, settings: Settings = None) -> None:
    """Print the complete experiment file with a comment on every key."""
    from cabafl.assembly import make_method
    from cabafl.cli.run import read_experiment
    from cabafl.toml import experiment_toml

    experiment = read_experiment(file, settings)
    parameters = make_method(experiment).parameters
    console.print(experiment_toml(experiment, parameters, comments=True), end="", soft_wrap=True)
