"""Generated dialogues: every task is a function of a random generator; held-out cases come from other seeds."""

from .tasks import TASKS, Case
from .turns import Dialogue, Message, render

__all__ = ["TASKS", "Case", "Dialogue", "Message", "render"]
