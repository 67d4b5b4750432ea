from cordwood.kernels.reference import decode_columns as decode_columns
from cordwood.kernels.reference import decode_rows as decode_rows
from cordwood.kernels.reference import scan_headers as scan_headers
from cordwood.kernels.reference import walk_records as walk_records
