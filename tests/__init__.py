"""A regular package, which comes before the one of this name that pgx installs."""
