"""Which module feeds which channels: what may be ordered, masked at its consumers, or cut out."""

from .graph import ChannelGraph as ChannelGraph, channel_graph as channel_graph
from .groups import Constraint as Constraint, Group as Group, Use as Use
from .rules import module_rule as module_rule
