"""Tables of replays, for any type of item: which entries exist, how they are drawn, and which are removed when full.

Index       chooses places for inserted entries, and entries to draw
ItemTable   stores objects of any type, by such an index; rows of arrays have their own table in `levada.rl`
SumTree     draws in proportion to values
"""

from levada.tables.index import Drawn, Index
from levada.tables.items import ItemTable
from levada.tables.sum_tree import SumTree

__all__ = ["Drawn", "Index", "ItemTable", "SumTree"]
