"""Drawings of a flow: ASCII text, SVG and Mermaid."""
