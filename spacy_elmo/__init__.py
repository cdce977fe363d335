"""ELMo in spaCy: the `elmo` component, and the architectures of the components that listen to it.

spaCy finds both by the entry points of this distribution; nothing needs to be imported for them.
"""
