from cordwood.kernels.reference import encode_columns as encode_columns
from cordwood.kernels.reference import encode_rows as encode_rows
