"""The channel graph of a model: which modules produce and consume which channels."""

from .graph import ChannelGraph as ChannelGraph, channel_graph as channel_graph
from .groups import Constraint as Constraint, Group as Group, Use as Use
from .rules import module_rule as module_rule
