"""OpenAI's Responses dialect, stateless: nothing is stored, the whole conversation comes with each request."""
