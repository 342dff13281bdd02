"""Training the small model that ships.

Read in this order: corpus, vocabulary, network, dialogues, prepare, train, tune_drafts, export, evaluate.
"""
