"""Logic without a screen: settings, hardware, models, backends and the router."""
