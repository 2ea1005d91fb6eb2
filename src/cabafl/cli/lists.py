"""`cabafl methods` and `cabafl models`"""

from rich.table import Table

from cabafl.cli.console import console, print_table

NARROW_LISTS = 110  # columns below which long texts are better read row by row


def methods() -> None:
    """List the methods with their parameters and defaults."""
    from cabafl.methods import NAMES, find
    from cabafl.toml import toml_value

    table = Table(show_lines=True)
    for heading in ("method", "kind", "paper", "parameters (defaults)"):
        table.add_column(heading, overflow="fold")
    for name in NAMES:
        cls = find(name)
        fields = cls.Parameters.model_fields.items()
        defaults = (f"{key} = {'none' if f.default is None else toml_value(f.default)}" for key, f in fields)
        table.add_row(name, cls.kind, cls.paper, ", ".join(defaults))
    print_table(table, NARROW_LISTS)


def models() -> None:
    """List the networks with their inputs and feature layers."""
    from cabafl.models.catalogue import NETWORKS

    table = Table()
    for heading in ("model", "input", "description", "feature layer"):
        table.add_column(heading, overflow="fold")
    for name, network in NETWORKS.items():
        table.add_row(name, network.takes, network.about, network.feature)
    print_table(table, NARROW_LISTS)
    console.print(
        "For your own network, set model.name=package.module:Class; it is called as Class(input_shape, classes)."
    )
