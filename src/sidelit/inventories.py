"""# Where other people's names are documented

> A project lists the names from outside that it may link to, and the page of each.

    [[inventories]]
    prefix = "torch"
    file = "inventories/torch.txt"
    url = "https://docs.pytorch.org/docs/stable/{place}"

The file lies beside the pages of the site. It is either the `objects.inv` that Sphinx makes, or a text with a
name on each line, below a line that says where they are documented:

    @ generated/{name}.html
    torch.cat
    torch.nn.Parameter torch.nn.parameter.Parameter

The second word, if there is one, stands in the address for the name. A name that no list has gets no link.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidelit.tables import Table


@dataclass(frozen=True, slots=True)
class Inventory:
    """A list of documented names.

    :param prefix: the names in it that are meant are this or begin with this and a dot; empty for all
    :param file: its path from the folder of the site's data
    :param url: the address of a page, with `{place}` for its place in the documentation
    """

    prefix: str
    file: str
    url: str
    line: int = 1


def read(top: Table) -> tuple[Inventory, ...]:
    """Take `[[inventories]]` out of the configuration."""
    return tuple(_inventory(table) for table in top.tables("inventories"))


def _inventory(table: Table) -> Inventory:
    file, url = table.take("file", str), table.take("url", str)
    made = Inventory(table.take("prefix", str, ""), file, url, table.line(file))
    table.finish()
    if not url.startswith(("https://", "http://")) or "{place}" not in url:
        hint = 'write it as in "https://docs.python.org/3/{place}"'
        raise table.error(f"`url` of the inventory {file} is no address with a {{place}} in it", url, hint)
    return made
