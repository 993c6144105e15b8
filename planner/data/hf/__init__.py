"""Networks from the `config.json` that published models come with."""
