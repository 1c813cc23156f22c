"""Learners in processes of their own: one, or several replicas that compute each update together."""
