"""Proofs across processes: what one writes, the others see, and every race has one winner."""
