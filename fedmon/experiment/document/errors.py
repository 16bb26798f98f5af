"""What is wrong with a document of an experiment."""

from __future__ import annotations

from fedmon.common.errors import InvalidInputError
from fedmon.experiment.errors import ExperimentError, InvalidExperimentError


class DescriptionError(ExperimentError, InvalidInputError):
    """A document does not describe an experiment; the message names the place, what is wrong and what is allowed."""


class ExperimentIdError(DescriptionError, InvalidExperimentError):
    """The id of an experiment or run cannot be the name of one folder."""


class DuplicateResourceError(DescriptionError):
    """Two resources have the same guid, or the same name."""


class UnknownMemberError(DescriptionError):
    """A name stands where a resource is meant, and no resource has it."""


class UnknownStateError(DescriptionError):
    """A state or an action that there is not."""


class ValueFormError(DescriptionError):
    """A value is not of the type that it says, or of one that no document can hold."""


class ConditionTextError(DescriptionError):
    """A condition cannot be understood; the message says which forms there are."""


class MalformedDocumentError(DescriptionError):
    """The text is not XML or not TOML; the message names line and column."""


class UnsafeXmlError(DescriptionError):
    """XML declares a document type or entities, which no experiment needs and which can harm its reader."""


class DocumentTooLargeError(DescriptionError):
    """A document is longer, deeper or of more parts than any experiment of ours."""
