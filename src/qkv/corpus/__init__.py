"""Files to rows: formats, documents, sentences, splits, and the catalogue of named datasets. No torch."""
