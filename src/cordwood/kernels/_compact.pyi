from cordwood.kernels.reference import KeyMap as KeyMap
from cordwood.kernels.reference import keep_records as keep_records
