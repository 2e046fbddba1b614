"""Errors and the warning of leanbayes; messages say what was expected, what was received, and what to do."""


class LeanBayesError(Exception):
    """Base of everything leanbayes raises on purpose."""


class ConfigError(LeanBayesError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class ConversionError(LeanBayesError, ValueError):
    """A model cannot be converted or restored; it has not been changed."""


class DataError(LeanBayesError, ValueError):
    """A data set, batch or file of data is missing, damaged or of the wrong shape."""


class TrainingError(LeanBayesError, RuntimeError):
    """Training cannot start or go on."""


class PredictionError(LeanBayesError, RuntimeError):
    """A prediction cannot be made."""


class EvaluationError(LeanBayesError, ValueError):
    """A metric is undefined for what it was given."""


class ArtifactError(LeanBayesError, ValueError):
    """A file is damaged, foreign, from the future, or does not fit the model; nothing has been changed."""


class MissingExtraError(LeanBayesError, ImportError):
    """An optional package is needed; the message gives the pip command."""


class OutOfMemoryError(LeanBayesError, MemoryError):
    """The system has not enough memory left for an activation."""


class LeanBayesWarning(UserWarning):
    """Something will work, but perhaps not as hoped."""
