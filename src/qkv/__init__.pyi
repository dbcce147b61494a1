from qkv.api import evaluate as evaluate
from qkv.api import load as load
from qkv.api import train as train
from qkv.sklearn import TransformerClassifier as TransformerClassifier

__version__: str
