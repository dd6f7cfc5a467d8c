"""Adjacency: which pairs of data sets an epsilon promises to make indistinguishable."""

import enum

__all__ = ["Adjacency"]


class Adjacency(enum.Enum):
    """What it means for two data sets to differ in one record; printed wherever epsilon is.

    Example:
      >>> print(Adjacency.ZERO_OUT)
      zero-out
      >>> Adjacency("add-remove").sentence
      'one record may be present or absent; the declared number of records is public'
    """

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    def __str__(self) -> str:
        return self.value

    @property
    def sentence(self) -> str:
        """The relation in words that a person who is not an expert can read."""
        return _SENTENCES[self]


_SENTENCES = {
    Adjacency.ZERO_OUT: (
        "one record may count or contribute nothing; the number of records is public"
    ),
    # The true number is private. Rate, capacity and cost come from the declared one.
    Adjacency.ADD_REMOVE: (
        "one record may be present or absent; the declared number of records is public"
    ),
    Adjacency.REPLACE_ONE: (
        "one record may be replaced by any other; the number of records is public"
    ),
}
