"""The cloud trainer: runs the last blocks of many edges' models."""
