"""The exceptions a user can meet. Each message names the file or field, the value, and what to do."""


class JubakoError(Exception):
    """Base of every error that is the user's, the file's or the machine's doing, never a bug."""


class FileFormatError(JubakoError):
    """A model file is damaged, truncated, hostile or of a kind Jubako does not read."""


class MissingTensorError(FileFormatError):
    """The given files lack tensors or metadata that the network needs."""


class TemplateError(JubakoError):
    """A chat template failed, refused its input, or tried something it may not do."""


class RequestError(JubakoError):
    """What was asked can't be done: a value out of range, a prompt longer than the context."""


class MachineError(JubakoError):
    """This machine can't do it: no such device, too little memory, an unsupported processor."""


class CardLostError(MachineError):
    """A GPU stopped answering. This process can use none any more; a new one goes on with the others."""
