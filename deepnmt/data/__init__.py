"""Raw parallel text to batches of ids."""
