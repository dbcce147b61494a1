"""One file a task: its dataset, loss, validation, test, and what its model card says.

To add a task: write `tasks/NAME.py` that ends with a `Task`, add it to `TASKS`, and add its name and its families to
`Task` and `FAMILIES_OF_TASK` in `config/recipe.py`.
"""

from __future__ import annotations

from qkv.config.recipe import ModelConfig
from qkv.tasks.classify import CLASSIFY
from qkv.tasks.complete import COMPLETE
from qkv.tasks.fill import FILL
from qkv.tasks.regress import REGRESS
from qkv.tasks.task import Task
from qkv.tasks.translate import TRANSLATE

TASKS: dict[str, Task] = {task.name: task for task in (CLASSIFY, REGRESS, FILL, COMPLETE, TRANSLATE)}


def task_for(config: ModelConfig) -> Task | None:
    """The task that a model without a recipe was made for; None where it has no head."""
    return next((task for task in TASKS.values() if task.fits(config.resolve())), None)
