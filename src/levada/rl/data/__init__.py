"""Arrays that flow through a graph: nested observations, frame stacks, rollouts, transitions, running statistics."""
