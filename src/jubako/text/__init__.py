"""Between text and tokens: vocabulary, chat template, sampling, stop sequences."""
