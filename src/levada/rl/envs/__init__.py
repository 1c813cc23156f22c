"""Environments: recipes (`Task`), batches with one reset rule, checks of what environments return, saved states."""
