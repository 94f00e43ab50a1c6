"""Run folders: settings, checkpoints, trained models, and the records of what was measured."""

from viscos.runs.folder import CHECKPOINT as CHECKPOINT
from viscos.runs.folder import COMPLETED as COMPLETED
from viscos.runs.folder import COMPLETIONS as COMPLETIONS
from viscos.runs.folder import CONFIG as CONFIG
from viscos.runs.folder import LATEST as LATEST
from viscos.runs.folder import MACHINE as MACHINE
from viscos.runs.folder import RECORD as RECORD
from viscos.runs.folder import SHARDS as SHARDS
from viscos.runs.folder import absolute as absolute
from viscos.runs.folder import alone as alone
from viscos.runs.folder import as_text as as_text
from viscos.runs.folder import discard_if_empty as discard_if_empty
from viscos.runs.folder import essence as essence
from viscos.runs.folder import find_checkpoint as find_checkpoint
from viscos.runs.folder import has_shards as has_shards
from viscos.runs.folder import holds_nothing as holds_nothing
from viscos.runs.folder import load_config as load_config
from viscos.runs.folder import named as named
from viscos.runs.folder import refuse_taken as refuse_taken
from viscos.runs.folder import save_config as save_config
