"""Programs that are type-checked and never run."""
