"""Former place of the folder of a run."""

from fedmon.experiment.journal import RunFolder, is_folder_name, path_of, run_folder, run_id_of

__all__ = ["RunFolder", "is_folder_name", "path_of", "run_folder", "run_id_of"]
