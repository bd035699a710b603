"""Long contexts measured: perplexity over lengths, passkey retrieval, the softmax temperature."""

__all__: list[str] = []
