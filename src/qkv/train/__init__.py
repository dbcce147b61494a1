"""How weights are learnt: loss, optimiser, metrics, one loop."""
