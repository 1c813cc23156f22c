"""Upload of trained policies to the Hugging Face Hub, with a model card.

levada.push("runs/first", "user/ppo-CartPole-v1")
levada.load("hf://user/ppo-CartPole-v1")
"""

from levada.hub.repository import HubError
from levada.hub.upload import Pushed, push

__all__ = ["HubError", "Pushed", "push"]
