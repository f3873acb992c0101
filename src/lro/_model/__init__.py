"""Operations, records and how they change, as values and pure functions (spec §2, §3)."""
