"""Environments that are functions in JAX: `Task("gymnax:CartPole-v1")`, and those of Brax, MuJoCo Playground, pgx and Craftax."""
