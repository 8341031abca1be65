"""Between the sessions and the pure scheduler: offers, starts, forecasts and rests."""

__all__: list[str] = []
