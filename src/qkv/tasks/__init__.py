"""One file a task: its dataset, loss, validation, test, and what its model card says.

To add a task with an existing head: write `tasks/NAME.py` that ends with a `Task` record and add it to `TASKS`. In
`config/recipe.py` add its name to `TaskName`, its families to `FAMILIES_OF_TASK`, and its name to the `tasks=` of the
keys that it reads. `tests/tasks/test_task.py` says what must hold. A new head also needs: `Head` in `config/recipe.py`,
`model/heads.py` and `model/build.py`, a prediction in `predict/predictor.py` (which chooses by head, not by task), and
its Hugging Face class in `exchange/`.
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
