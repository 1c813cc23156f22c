"""The tables of replays, for any item: which entries exist, how they are drawn, what goes when there is no more room.

Index       chooses: places for what is inserted, entries for what is drawn
ItemTable   keeps objects of any kind by such an index; rows of arrays have a table of their own, in `levada.rl`
SumTree     draws in proportion to values
"""

from levada.tables.index import Drawn, Index
from levada.tables.items import ItemTable
from levada.tables.sum_tree import SumTree

__all__ = ["Drawn", "Index", "ItemTable", "SumTree"]
