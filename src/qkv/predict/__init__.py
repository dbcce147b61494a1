"""Text in, Prediction out: tokenise, run the model, decode. Chosen by the model's head, never by its task."""
