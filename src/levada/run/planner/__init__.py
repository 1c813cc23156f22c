"""`--on auto`: where a run is fastest, and with which settings, found in at most eight probes of a second each.

    candidates      deployments and settings that are possible
    costs           what an env step costs, and how fast a candidate should be, given that
    probe           the measured speed and costs of a candidate
    search          which candidate is probed next, and which one is chosen

Spreeze (Hou et al. 2023, arXiv 2312.06126) and the scaling study of reinforcement learning for flow control by Jia and Xu (2024,
arXiv 2402.11515) balance samplers, environments and learners by measuring as well; they measure the candidates in turn.
"""
