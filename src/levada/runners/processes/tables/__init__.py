"""Tables of replays, each in a process of its own, which copies rows straight from where the samplers made them."""
