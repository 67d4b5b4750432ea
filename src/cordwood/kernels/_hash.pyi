from cordwood.kernels.reference import hash_records as hash_records
from cordwood.kernels.reference import list_roots as list_roots

def _use_portable(portable: bool) -> bool: ...
